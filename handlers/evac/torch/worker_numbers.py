"""The random numbers of a process that loads data: where its generators stand, kind by kind, as bytes.

Kind by kind, because most datasets draw from one of them, and what has not changed need not travel:
torch's take 5 KiB, Python's 4 KiB, numpy's 3 KiB.

Beside the global ones there are those that the dataset and the collate function hold: a transform with a
`numpy.random.Generator` of its own. They are looked for in the attributes of both and of what they
hold, a few steps deep, once they may have been replaced by a ``worker_init_fn``. What a library keeps elsewhere
is not seen, nor what is deeper; it wants a dataset with a ``state_dict``.
"""

import pickle
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import MethodType
from typing import Any, TypeAlias

import torch

from evac.torch import generators
from evac.torch.rank_state import load_rng, read_rng

Numbers: TypeAlias = Mapping[str, bytes]

# From a dataset over its wrappers and a composition of transforms to one of them.
_DEEP = 6
_MOST = 1000
_LONGEST = 64


class Held:
    """The generators that objects hold, somewhere in them.

    Args:
        roots: In this process; by name.
    """

    def __init__(self, **roots: Any) -> None:
        every = [pair for name, one in roots.items() for pair in _held(name, one)]
        self._holders = dict(every)
        self._names = [
            (where, name) for where, holder in every for name in generators.unregistered(holder, {})
        ]

    def __bool__(self) -> bool:
        return bool(self._names)

    def now(self) -> dict[str, Any]:
        """By where they are."""
        # By the attribute, each time: a dataset may put another generator there.
        found = {
            f"{where}.{name}": vars(self._holders[where]).get(name) for where, name in self._names
        }
        return {where: one for where, one in found.items() if generators.is_one(one)}

    def put_back(self, states: Mapping[str, Any]) -> None:
        """Set each to its state; where none is yet, since it is made with the first sample, one is put."""
        generators.put_back(self.now(), states)
        for where, state in states.items():
            place, _, name = where.rpartition(".")
            own = vars(self._holders[place]) if place in self._holders else {}
            if name in own and own[name] is None:
                own[name] = generators.made(state)


class WorkerNumbers:
    """Of this process.

    Args:
        dataset: As this process has it.
        collate: Likewise.
    """

    def __init__(self, dataset: Any, collate: Any = None) -> None:
        self._held = Held(dataset=dataset, collate=collate)

    def read(self) -> Numbers:
        """Where they stand."""
        rng = read_rng()
        numbers = {
            "python": pickle.dumps(rng["python"]),
            "torch": _bytes(rng["torch"]),
        }
        if rng["numpy"] is not None:
            numbers["numpy"] = pickle.dumps(rng["numpy"])
        if self._held:
            # A pickled tensor is another one each time.
            own = generators.read(self._held.now()).items()
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
            self._held.put_back(
                {where: _tensor(one) if isinstance(one, bytes) else one for where, one in own}
            )


def changed(numbers: Numbers, since: Numbers) -> Numbers:
    """The kinds that are not what they were."""
    return {kind: one for kind, one in numbers.items() if since.get(kind) != one}


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _held(name: str, root: Any) -> Iterator[tuple[str, Any]]:
    """What has attributes, and where it is: *root*, and what it holds."""
    left: deque[tuple[str, Any, int]] = deque([(name, root, 0)])
    seen: set[int] = set()
    while left and len(seen) < _MOST:
        where, one, deep = left.popleft()
        parts = _parts(one)
        if not parts or id(one) in seen:
            continue
        seen.add(id(one))
        if not issubclass(type(one), dict | list | tuple | MethodType | partial):
            yield where, one
        if deep < _DEEP:
            # At once: a thread of theirs may put something there.
            left += [(f"{where}.{name}", part, deep + 1) for name, part in list(parts.items())]


def _parts(one: Any) -> Mapping[Any, Any]:
    # By its type, and without asking it: a proxy may do anything.
    kind = type(one)
    if issubclass(kind, type | torch.Tensor):
        return {}
    if issubclass(kind, MethodType):
        return {"self": one.__self__}
    if issubclass(kind, partial):
        return {"func": one.func, "args": one.args, "keywords": one.keywords}
    if issubclass(kind, list | tuple):
        return dict(enumerate(one)) if len(one) <= _LONGEST else {}
    if issubclass(kind, dict):
        return one if len(one) <= _LONGEST else {}
    try:
        found: dict[Any, Any] = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return {}
    return found
