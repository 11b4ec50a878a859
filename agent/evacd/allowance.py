"""How often is too often: so many at once, and one more after each interval. Pure."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

# Of whom is remembered at most; who was not heard of for longest is taken for new.
_REMEMBERED = 1024

_Who = TypeVar("_Who", bound=Hashable)


@dataclass(frozen=True)
class _Bucket:
    left: float
    since: float


class Allowance(Generic[_Who]):
    """One bucket each.

    Args:
        burst: So many at once.
        every: Seconds until there is one more.
    """

    def __init__(self, burst: int, every: float) -> None:
        self._burst, self._every = float(burst), every
        self._buckets: dict[_Who, _Bucket] = {}

    def take(self, who: _Who, *, now: float) -> bool:
        """Whether *who* may have one more; *now* in monotonic seconds."""
        before = self._buckets.pop(who, _Bucket(self._burst, now))
        left = min(self._burst, before.left + (now - before.since) / self._every)
        allowed = left >= 1.0
        # At the end: those whose turn was longest ago are first.
        self._buckets[who] = _Bucket(left - allowed, now)
        if len(self._buckets) > _REMEMBERED:
            del self._buckets[next(iter(self._buckets))]
        return allowed


class Complaints:
    """Which lines a log gets of what is done over and over: one a minute for each user and kind."""

    def __init__(self, *, burst: int = 1, every: float = 60.0) -> None:
        self._allowance: Allowance[tuple[str, int | str]] = Allowance(burst, every)
        self._unsaid: Counter[tuple[str, int | str]] = Counter()

    def take(self, what: str, who: int | str, *, now: float) -> int | None:
        """How many of its kind were not logged since the last one; None where this is not, either."""
        key = (what, who)
        if not self._allowance.take(key, now=now):
            if len(self._unsaid) < _REMEMBERED or key in self._unsaid:
                self._unsaid[key] += 1
            return None
        return self._unsaid.pop(key, 0)
