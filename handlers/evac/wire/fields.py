"""What a message's field may hold: the rule lies beside the field, for the codec to check."""

import re
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar

# 2**53: what every JSON reader can hold exactly.
BIG = 2**53


@dataclass(frozen=True)
class Message:
    """The root of all messages; `type` is the word on the wire."""

    type: ClassVar[str]


def text(limit: int, pattern: re.Pattern[str] | None = None, default: Any = MISSING) -> Any:
    """A string of at most *limit* characters, of that *pattern*."""
    return field(default=default, metadata={"kind": str, "limit": limit, "pattern": pattern})


def count(low: int = 0, high: int = BIG, default: Any = MISSING) -> Any:
    """A whole number, both ends included."""
    return field(default=default, metadata={"kind": int, "low": low, "high": high})


def seconds(default: Any = MISSING) -> Any:
    """A duration, up to some 30 years."""
    return field(default=default, metadata={"kind": float, "low": 0.0, "high": 1e9})


def part(default: Any = MISSING) -> Any:
    """A share of 1."""
    return field(default=default, metadata={"kind": float, "low": 0.0, "high": 1.0})


def flag(default: Any = MISSING) -> Any:
    """True or false."""
    return field(default=default, metadata={"kind": bool})


def texts(limit: int, default: Any = MISSING) -> Any:
    """Strings of at most *limit* characters each."""
    return field(default=default, metadata={"kind": tuple, "limit": limit})
