"""The notices that an order was given for, as they outlive the daemon and the boot. Pure.

Within one boot the monotonic clock goes on over a restart of the daemon: a source that tells
its notice again as if it were new gets no more time for that. Over a reboot only the wall
clock goes on, and what was announced for before it, this machine has been through.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TypeAlias

from evacd.facts import Notice

# Clouds list what is over for up to a week; a node that boots all day forgets the oldest.
MOST_OF_BEFORE = 64
# What may be asked for has no end; a date has.
LONGEST_SECONDS = 10 * 365 * 86400.0

Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class Heard:
    """One notice that an order was given for.

    Attributes:
        boot: Kernel boot id under which it was.
        seen: Monotonic seconds of that boot.
        deadline: Monotonic seconds of that boot; finite.
        ends: The deadline in UTC, for other boots.
    """

    source: str
    id: str
    boot: str
    seen: float
    deadline: float
    ends: datetime

    @property
    def key(self) -> Key:
        """What names it among the notices of one boot."""
        return self.source, self.id


def of_boot(notices: Iterable[Heard], boot: str) -> Mapping[Key, Heard]:
    """Those of one boot."""
    return MappingProxyType({each.key: each for each in notices if each.boot == boot})


def over(notices: Iterable[Heard], boot: str, *, utc: datetime) -> tuple[str, ...]:
    """Ids of what this machine has been through: announced to another boot, for before now.

    What was announced for later is not over because somebody rebooted meanwhile.
    """
    return tuple(each.id for each in notices if each.boot != boot and each.ends <= utc)


def recalled(notice: Notice, before: Heard | None) -> Notice:
    """*notice* with what was known of it before a restart within one boot: it only loses time."""
    if before is None:
        return notice
    known = before.deadline if notice.deadline is None else min(notice.deadline, before.deadline)
    return replace(notice, seen=min(notice.seen, before.seen), deadline=known)


def kept(
    notices: Iterable[Heard],
    leaving: Iterable[Notice],
    waited_for: Collection[Key],
    *,
    boot: str,
    now: float,
    utc: datetime,
) -> tuple[Heard, ...]:
    """What is to be remembered from now on.

    Args:
        notices: What was remembered so far.
        leaving: What carries the running order.
        waited_for: Of this boot, from before a restart and not told again yet.
        now: Monotonic seconds.
    """
    notices = tuple(notices)
    before = of_boot(notices, boot)
    here = {(each.source, each.id): each for each in leaving}
    others = [each for each in notices if each.boot != boot and each.key not in here]
    waiting = [before[key] for key in waited_for if key in before and key not in here]
    running = (_heard(each, before.get(key), boot, now, utc) for key, each in here.items())
    return (*others[-MOST_OF_BEFORE:], *waiting, *running)


def _heard(notice: Notice, before: Heard | None, boot: str, now: float, utc: datetime) -> Heard:
    deadline = min(now if notice.deadline is None else notice.deadline, now + LONGEST_SECONDS)
    if before and (before.seen, before.deadline) == (notice.seen, deadline):
        # Its date stays the text it is: what has not changed is not written again.
        return before
    ends = utc + timedelta(seconds=max(deadline - now, -LONGEST_SECONDS))
    return Heard(notice.source, notice.id, boot, notice.seen, deadline, ends)
