"""Whether this daemon is alive and ready, said so that it can also be denied. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evacd.health import Deaf

# A loop that wakes so much too late could miss a notice, or has just hung.
LATE_SECONDS = 2.0
# No beat for so long, while somebody asks, is a beat that died.
SILENT_SECONDS = 5.0


@dataclass(frozen=True)
class Pulse:
    """The beat of the event loop.

    Attributes:
        at: When it last beat, monotonic seconds.
        late: How many seconds too late that was.
    """

    at: float
    late: float = 0.0

    def beat(self, now: float, *, due: float) -> "Pulse":
        """It beats, and should have beaten at *due*."""
        return Pulse(now, max(0.0, now - due))


@dataclass(frozen=True)
class Vitals:
    """What the pages of health are judged by.

    Attributes:
        pulse: None before the first beat.
        dead: Tasks that should run for ever and do not, by name.
        deaf: What does not answer now of all sources that count.
        sockets: Both listen.
        waiting: Why not all that counts is heard yet; "" where it is.
        stores: Why a store cannot be counted on, by its name; what works is not in it.
        state: Why what is written down is not where it was to be; "" where it is.
    """

    pulse: Pulse | None = None
    dead: tuple[str, ...] = ()
    deaf: tuple[Deaf, ...] = ()
    sockets: bool = False
    waiting: str = ""
    stores: Mapping[str, str] = field(default_factory=dict)
    state: str = ""


@dataclass(frozen=True)
class Verdict:
    """The answer, and what it is made of: each part is "" where it is well."""

    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Nothing is wrong."""
        return not any(self.parts.values())


def healthy(vitals: Vitals, *, now: float) -> Verdict:
    """Would a restart help?

    A source that does not answer is no reason: what is staged would be lost on every node of a
    cluster whose API server is away for a few minutes, and no restart brings that back.
    """
    return Verdict(
        {
            "loop": _loop(vitals.pulse, now),
            "tasks": f"ended: {', '.join(vitals.dead)}" if vitals.dead else "",
        }
    )


def ready(vitals: Vitals, *, deaf_limit: float) -> Verdict:
    """Can workloads count on it by now?

    Args:
        deaf_limit: Seconds that a source may go without an answer.
    """
    deaf = ", ".join(str(each) for each in vitals.deaf if each.seconds > deaf_limit)
    sockets = "" if vitals.sockets else "not listening yet"
    stores = ", ".join(f"{name}: {why}" for name, why in vitals.stores.items())
    return Verdict(
        {
            "sockets": sockets,
            "sources": vitals.waiting or deaf,
            "store": stores,
            "state": vitals.state,
        }
    )


def _loop(pulse: Pulse | None, now: float) -> str:
    if pulse is None:
        return ""
    if now - pulse.at > SILENT_SECONDS:
        return f"no beat for {now - pulse.at:.1f} s"
    if pulse.late > LATE_SECONDS:
        return f"{pulse.late:.1f} s late"
    return ""
