"""How the tests' API server reads requests and words its answers."""

import json
from copy import deepcopy
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it ships none
import yaml
from aiohttp import web

from tests.kube import protobuf
from tests.kube.patches import json_patch, merge, strategic
from tests.kube.selectors import fielded, labelled
from tests.kube.storage import Object

SCHEMAS = "1.35"


class Refusal(Exception):
    """Answered in place of what was asked for."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


def problem_of(thing: Object) -> str:
    try:
        kubernetes_validate.validate(thing, SCHEMAS, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return ""
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(str(part) for part in error.path)}: {error.message}"
    return ""


def patched(old: Object, body: Any, request: web.Request) -> Object:
    if request.method == "PUT":
        return deepcopy(dict(body))
    match request.content_type:
        case "application/merge-patch+json":
            new = merge(old, body)
        case "application/json-patch+json":
            new = json_patch(old, body)
        case "application/strategic-merge-patch+json" | "application/apply-patch+yaml":
            new = strategic(old, body)
        case other:
            raise Refusal(415, "UnsupportedMediaType", f"the body of the request was {other}")
    named = body.get("metadata", {}).get("resourceVersion") if isinstance(body, dict) else None
    if named is None and isinstance(new.get("metadata"), dict):
        # What was not named is no condition.
        new["metadata"].pop("resourceVersion", None)
    result: Object = new
    return result


def dry(request: web.Request) -> bool:
    return request.query.get("dryRun") == "All"


def selected(request: web.Request, thing: Object) -> bool:
    return labelled(thing, request.query.get("labelSelector", "")) and fielded(
        thing, request.query.get("fieldSelector", "")
    )


async def body_of(request: web.Request) -> Any:
    if request.content_type == protobuf.KIND:
        return protobuf.decode(await request.read())
    text = await request.text()
    return yaml.safe_load(text) if request.content_type.endswith("yaml") else json.loads(text)


def as_json(thing: Any, code: int = 200) -> web.Response:
    return web.json_response(thing, status=code)


def status(code: int, reason: str, message: str) -> web.Response:
    """A refusal as an API server words it."""
    return web.json_response(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        },
        status=code,
    )
