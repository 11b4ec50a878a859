"""From a user's document to the answers of a source. Does no I/O."""

from evacd.facts import Probe, Unknown
from evacd.notice.standing import Said, Standing
from evacd.notice.user.schema import UserNotice, Wrong, parse
from evacd.notice.when import Sight, deadline

EMPTY = b'{"notices": []}'
CURE = "the document's form is in agent/evacd/notice/user/SCHEMA.md"


class Heard:
    """What one source has heard so far."""

    def __init__(self, source: str) -> None:
        """Nothing, so far."""
        self._source = source
        self._standing = Standing(source)

    def hear(self, raw: bytes, sight: Sight) -> tuple[Probe, ...]:
        """What this document means; one that is wrong changes nothing.

        Args:
            sight: Of this document, not of the notice's first appearance.
        """
        notices = parse(raw)
        if isinstance(notices, Wrong):
            return (Unknown(self._source, f"{notices.where}: expected {notices.expected}", CURE),)
        said = [_said(notice, sight) for notice in notices]
        return self._standing.hear(said, now=sight.monotonic)


def _said(notice: UserNotice, sight: Sight) -> Said:
    at, suspect, dated = None, "", ""
    if notice.deadline is not None:
        when = deadline(notice.deadline, sight=sight, most=None)
        at, suspect, dated = when.deadline, when.suspect, notice.deadline.isoformat()
    if notice.seconds_left is not None:
        # Counted on the monotonic clock anew each time: only more than jitter can shorten it.
        left = sight.monotonic + notice.seconds_left
        if at is None or left < at:
            at, suspect, dated = left, "", f"{notice.seconds_left} s from {sight.monotonic}"
    return Said(
        id=notice.id,
        kind=notice.kind,
        confidence=notice.confidence,
        deadline=at,
        dated=dated,
        detail="; ".join(filter(None, (notice.detail, suspect))),
        gone="it is no longer in the document",
    )
