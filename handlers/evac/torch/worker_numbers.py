"""The random numbers of a process that loads data: where its generators stand, kind by kind, as bytes.

Kind by kind, because most datasets draw from one of them, and what has not changed need not travel:
torch's take 5 KiB, Python's 4 KiB, numpy's 3 KiB.

Beside the global ones there are those that the dataset holds: a transform with a
`numpy.random.Generator` of its own. They are looked for in the attributes of the dataset and of what it
holds, a few steps deep, once they may have been replaced by a ``worker_init_fn``. What a library keeps outside
of the dataset is not seen, nor what is deeper; it wants a dataset with a ``state_dict``.
"""

import pickle
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch

from evac.torch import generators
from evac.torch.rank_state import load_rng, read_rng

Numbers: TypeAlias = Mapping[str, bytes]

# From a dataset over its wrappers and a composition of transforms to one of them.
_DEEP = 6
_MOST = 1000
_LONGEST = 64


class WorkerNumbers:
    """Of this process.

    Args:
        dataset: As this process has it.
    """

    def __init__(self, dataset: Any) -> None:
        self._holders = [
            (f"{where}.{name}", holder, name)
            for where, holder in _held(dataset)
            for name in generators.unregistered(holder, {})
        ]

    def read(self) -> Numbers:
        """Where they stand."""
        rng = read_rng()
        numbers = {
            "python": pickle.dumps(rng["python"]),
            "torch": _bytes(rng["torch"]),
        }
        if rng["numpy"] is not None:
            numbers["numpy"] = pickle.dumps(rng["numpy"])
        if self._holders:
            # A pickled tensor is another one each time.
            own = generators.read(self._own()).items()
            numbers["own"] = pickle.dumps(
                {where: _bytes(one) if isinstance(one, torch.Tensor) else one for where, one in own}
            )
        return numbers

    def put_back(self, numbers: Numbers) -> None:
        """Go on from where they stood."""
        load_rng(
            {
                "python": pickle.loads(numbers["python"]),
                "numpy": pickle.loads(numbers["numpy"]) if "numpy" in numbers else None,
                "torch": _tensor(numbers["torch"]),
                "cuda": [],
            }
        )
        if "own" in numbers:
            own = pickle.loads(numbers["own"]).items()
            generators.put_back(
                self._own(),
                {where: _tensor(one) if isinstance(one, bytes) else one for where, one in own},
            )

    def _own(self) -> dict[str, Any]:
        # By the attribute, each time: a dataset may put another generator there.
        found = ((where, vars(holder).get(name)) for where, holder, name in self._holders)
        return {where: one for where, one in found if generators.is_one(one)}


def changed(numbers: Numbers, since: Numbers) -> Numbers:
    """The kinds that are not what they were."""
    return {kind: one for kind, one in numbers.items() if since.get(kind) != one}


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _held(dataset: Any) -> Iterator[tuple[str, Any]]:
    """What has attributes, and where it is: the dataset, and what it holds."""
    left: deque[tuple[str, Any, int]] = deque([("dataset", dataset, 0)])
    seen: set[int] = set()
    while left and len(seen) < _MOST:
        where, one, deep = left.popleft()
        parts = _parts(one)
        if not parts or id(one) in seen:
            continue
        seen.add(id(one))
        if not issubclass(type(one), dict | list | tuple):
            yield where, one
        if deep < _DEEP:
            left += [(f"{where}.{name}", part, deep + 1) for name, part in parts.items()]


def _parts(one: Any) -> Mapping[Any, Any]:
    # By its type, and without asking it: a proxy may do anything.
    kind = type(one)
    if issubclass(kind, type | torch.Tensor):
        return {}
    if issubclass(kind, list | tuple):
        return dict(enumerate(one)) if len(one) <= _LONGEST else {}
    if issubclass(kind, dict):
        return one if len(one) <= _LONGEST else {}
    try:
        found: dict[Any, Any] = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return {}
    return found
