"""Damage: a generation whose checksums may all be right, and of which something says nothing.

It is walked back from, on all ranks alike. That a checkpoint is of another model, or of a class that
this program has not, is none: an older one would be restored in place of a program put right.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar

import torch

from evac.commit import Problem
from evac.errors import GenerationError
from evac.torch.world import World

T = TypeVar("T")


class Unsound(GenerationError):
    """What was read is not what was written. Travels between ranks.

    Attributes:
        problems: At least one.
    """

    def __init__(self, generation: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(generation, "; ".join(f"{one.key}: {one.reason}" for one in problems))
        self.problems = problems

    def __reduce__(self) -> tuple[type["Unsound"], tuple[str, tuple[Problem, ...]]]:
        return (Unsound, (self.generation, self.problems))


@contextmanager
def sound(generation: str, key: str, *, unpickles: bool = False) -> Generator[None, None, None]:
    """Whatever goes wrong in here is damage: the bytes are those that were written, and say nothing.

    Args:
        key: The file or the item that is being made sense of.
        unpickles: It may be of a class that this program has not: an older generation would not help.

    Raises:
        Unsound: In place of what went wrong.
        GenerationError: That class is missing.
    """
    try:
        yield
    except (GenerationError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if unpickles and isinstance(error, ImportError | AttributeError):
            reason = f"{key}: this program lacks what it was saved with: {error}"
            raise GenerationError(generation, reason) from error
        reason = f"cannot be read: {type(error).__name__}: {error}"
        raise Unsound(generation, (Problem(key, reason),)) from error


def soundly(world: World, generation: str, act: Callable[[], T]) -> T:
    """Do *act*, and go on only where it worked on all ranks. Collective.

    Raises:
        Unsound: On all ranks alike, where one of them found damage.
        GenerationError: Likewise, where it failed otherwise on one of them.
    """
    made: list[T] = []

    def make() -> tuple[Problem, ...]:
        try:
            made.append(act())
        except Unsound as error:
            return error.problems
        return ()

    if problems := together(world.agree(generation, make)):
        raise Unsound(generation, problems)
    return made[0]


def together(found: Iterable[Iterable[Problem]]) -> tuple[Problem, ...]:
    """All that was *found*, in an order that is the same on all ranks."""
    every = {one for problems in found for one in problems}
    return tuple(sorted(every, key=lambda one: (one.key, one.reason)))
