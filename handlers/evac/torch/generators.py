"""Random-number generators of one's own: Python's `Random`, numpy's `Generator` and `RandomState`, torch's.

A sampler that draws from a private generator is not helped by the global one's state.
"""

import random
import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

Registered: TypeAlias = Mapping[str, Any]


def check(generators: Registered) -> None:
    """Refuse what is no generator.

    Raises:
        ValueError: One of them is none.
    """
    for name, one in generators.items():
        if _kind(one) == "":
            expected = "a torch.Generator, random.Random, numpy.random.Generator or RandomState"
            raise ValueError(f"generators[{name!r}]: expected {expected}, got {type(one).__name__}")


def is_one(one: Any) -> bool:
    """Whether it is a generator whose state can be kept."""
    return _kind(one) != ""


def read(generators: Registered) -> dict[str, Any]:
    """The state of each now."""
    return {name: _read(one) for name, one in generators.items()}


def put_back(generators: Registered, states: Mapping[str, Any]) -> list[str]:
    """Set each to its state; the names of those that have none."""
    for name, one in generators.items():
        if name in states:
            _set(one, states[name])
    return [f"generators[{name!r}]" for name in generators if name not in states]


def made(state: Any) -> Any:
    """A generator in *state*, as `read` gave it, on the CPU; None where it is of no kind that is known."""
    if isinstance(state, torch.Tensor):
        # A device's is shorter.
        one: Any = torch.Generator() if state.nbytes == torch.get_rng_state().nbytes else None
    elif isinstance(state, dict):
        numpy = sys.modules["numpy"]
        one = numpy.random.Generator(getattr(numpy.random, state["bit_generator"])())
    else:
        legacy = isinstance(state[0], str)
        one = sys.modules["numpy"].random.RandomState() if legacy else random.Random()
    if one is not None:
        _set(one, state)
    return one


def unregistered(holder: Any, registered: Registered) -> list[str]:
    """The attributes of *holder* that are generators and are not among *registered*."""
    known = {id(one) for one in registered.values()}
    found = getattr(holder, "__dict__", {})
    return [name for name, one in list(found.items()) if _kind(one) and id(one) not in known]


def _kind(one: Any) -> str:
    # By its type: a proxy may do anything when it is asked for its class.
    given = type(one)
    if issubclass(given, torch.Generator):
        return "torch"
    # `SystemRandom` is one by its class, and has no state.
    if issubclass(given, random.Random) and not issubclass(given, random.SystemRandom):
        return "python"
    # Who has a generator of numpy's has imported it.
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(given, numpy.random.Generator):
        return "numpy"
    if numpy is not None and issubclass(given, numpy.random.RandomState):
        return "numpy, legacy"
    return ""


def _read(one: Any) -> Any:
    kind = _kind(one)
    if kind == "python":
        return one.getstate()
    return one.bit_generator.state if kind == "numpy" else one.get_state()


def _set(one: Any, state: Any) -> None:
    kind = _kind(one)
    if kind == "python":
        one.setstate(state)
    elif kind == "numpy":
        one.bit_generator.state = state
    else:
        one.set_state(state)
