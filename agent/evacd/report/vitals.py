"""Whether this daemon is alive and ready, said so that it can also be denied. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
        deaf_seconds: For how long no source at all has been answering; 0 where one does.
        sockets: Both listen.
        waiting: Why nothing can be heard yet; "" where something can.
    """

    pulse: Pulse | None = None
    dead: tuple[str, ...] = ()
    deaf_seconds: float = 0.0
    sockets: bool = False
    waiting: str = ""


@dataclass(frozen=True)
class Verdict:
    """The answer, and what it is made of: each part is "" where it is well."""

    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Nothing is wrong."""
        return not any(self.parts.values())


def healthy(vitals: Vitals, *, now: float, deaf_limit: float) -> Verdict:
    """Would a restart help?

    Args:
        deaf_limit: Seconds without any answering source that are too many.
    """
    return Verdict(
        {
            "loop": _loop(vitals.pulse, now),
            "tasks": f"ended: {', '.join(vitals.dead)}" if vitals.dead else "",
            "sources": ""
            if vitals.deaf_seconds <= deaf_limit
            else f"none has answered for {vitals.deaf_seconds:.0f} s",
        }
    )


def ready(vitals: Vitals) -> Verdict:
    """Can workloads count on it by now?"""
    sockets = "" if vitals.sockets else "not listening yet"
    return Verdict({"sockets": sockets, "sources": vitals.waiting})


def _loop(pulse: Pulse | None, now: float) -> str:
    if pulse is None:
        return ""
    if now - pulse.at > SILENT_SECONDS:
        return f"no beat for {now - pulse.at:.1f} s"
    if pulse.late > LATE_SECONDS:
        return f"{pulse.late:.1f} s late"
    return ""
