"""What each kind of patch makes of an object, as an API server does it. Pure.

Sources: RFC 6902 (JSON patch), RFC 7386 (merge patch), and for strategic merge patches the
merge keys in kubernetes/api (patchMergeKey), of those lists that the tests' objects have.
"""

from copy import deepcopy
from typing import Any

# By the list's own name, wherever it is. A list that is not here is replaced as a whole, and
# so are a node's taints and a pod's tolerations, which have no merge key.
MERGE_KEYS = {
    "conditions": "type",
    "addresses": "type",
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
}


class BadPatch(ValueError):
    """It cannot be applied; the message says why."""


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: Any) -> Any:
    """A merge patch whose lists of objects are merged by their key, with ``$patch`` words."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: deepcopy(value) for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            result.pop(key, None)
        elif isinstance(value, list) and key in MERGE_KEYS:
            result[key] = _merged(result.get(key) or [], value, MERGE_KEYS[key])
        else:
            result[key] = strategic(result.get(key), value)
    return result


def _merged(old: list[Any], new: list[Any], key: str) -> list[Any]:
    result = list(old)
    for item in new:
        if not isinstance(item, dict) or key not in item:
            raise BadPatch(f"an item without its merge key {key}")
        at = [i for i, each in enumerate(result) if each.get(key) == item[key]]
        if item.get("$patch") == "delete":
            result = [each for i, each in enumerate(result) if i not in at]
        elif at:
            result[at[0]] = strategic(result[at[0]], item)
        else:
            result.append(deepcopy(item))
    return result


def json_patch(target: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902."""
    root = {"": deepcopy(target)}
    for operation in operations:
        parts = _parts(operation.get("path", ""))
        match operation.get("op"):
            case "test":
                if _at(root, parts) != operation.get("value"):
                    raise BadPatch(f"the test of {operation['path']} failed")
            case "add":
                _put(root, parts, operation["value"], new=True)
            case "replace":
                _at(root, parts)
                _put(root, parts, operation["value"], new=False)
            case "remove":
                _drop(root, parts)
            case other:
                raise BadPatch(f"{other} is not supported here")
    return root[""]


def _parts(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise BadPatch(f"{path!r} is no pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]


def _at(root: Any, parts: list[str]) -> Any:
    found = root
    for part in parts:
        try:
            found = found[int(part)] if isinstance(found, list) else found[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise BadPatch(f"there is no {'/'.join(parts)}") from None
    return found


def _put(root: Any, parts: list[str], value: Any, *, new: bool) -> None:
    holder, last = _at(root, parts[:-1]), parts[-1]
    if not isinstance(holder, list):
        holder[last] = deepcopy(value)
    elif last == "-":
        holder.append(deepcopy(value))
    elif new:
        holder.insert(int(last), deepcopy(value))
    else:
        holder[int(last)] = deepcopy(value)


def _drop(root: Any, parts: list[str]) -> None:
    _at(root, parts)
    holder, last = _at(root, parts[:-1]), parts[-1]
    del holder[int(last) if isinstance(holder, list) else last]
