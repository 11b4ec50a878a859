"""What each notice source last said, and since when. Pure: for status, checks and metrics."""

from dataclasses import dataclass, replace

from evacd.facts import Probe, Unknown


@dataclass(frozen=True)
class SourceHealth:
    """How one source is.

    Attributes:
        answers: False while its probes are `Unknown`.
        since: Monotonic seconds when that began.
        unknowns: Probes in a row that meant nothing.
        reason: What the last of them said.
        cure: What a person can most likely do about it.
        answered: It has answered at least once.
    """

    source: str
    answers: bool
    since: float
    unknowns: int = 0
    reason: str = ""
    cure: str = ""
    answered: bool = False


# What can tell for certain that this machine goes. The others only plan ahead or advise, or
# tell the same a little earlier: one of them that answers replaces none of these. A cloud's own
# name stands for its sources where its code could not be had.
CERTAIN = frozenset(
    {
        "aws", "aws/spot", "gcp", "gcp/preempted", "azure",
        "shutdown", "node", "calendar", "file", "exec", "http",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Deaf:
    """A source that does not answer now.

    Attributes:
        seconds: For how long.
        reason: What it last said.
        cure: What a person can most likely do about it; may be empty.
    """

    source: str
    seconds: float
    reason: str
    cure: str = ""

    def __str__(self) -> str:
        cure = f"; {self.cure}" if self.cure else ""
        return f"{self.source}: no answer for {self.seconds:.0f} s: {self.reason}{cure}"


def heard(before: SourceHealth | None, source: str, probe: Probe, *, now: float) -> SourceHealth:
    """The health of *source* after it gave this answer."""
    answers = not isinstance(probe, Unknown)
    if before is None or before.answers != answers:
        answered = answers or (before is not None and before.answered)
        before = SourceHealth(source, answers, since=now, answered=answered)
    if isinstance(probe, Unknown):
        return replace(before, unknowns=before.unknowns + 1, reason=probe.reason, cure=probe.cure)
    return before
