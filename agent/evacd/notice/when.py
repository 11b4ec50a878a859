"""From a provider's date to seconds on the monotonic clock, once, at first sight. Pure.

Dates come from another machine's wall clock. Ours may be wrong and may be stepped while a
notice stands, so a date is turned into a deadline when it is first seen and wall-clock time
travels no further. `Date` headers of the same service tell how far our clock is off.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# A Date header has whole seconds, and the answer was under way for a while.
SKEW_NOISE_SECONDS = 2.0
# A field this far beyond what the kind of notice allows is not believed.
SLACK_SECONDS = 5.0


@dataclass(frozen=True)
class Sight:
    """When something was seen, on both clocks.

    Attributes:
        monotonic: Seconds.
        utc: This machine's wall clock at that moment, timezone-aware.
        skew: Seconds that the service's clock is ahead of ours; 0 where it is not known.
    """

    monotonic: float
    utc: datetime
    skew: float = 0.0


@dataclass(frozen=True)
class When:
    """A deadline, and whether its date can be trusted.

    Attributes:
        deadline: Monotonic seconds; None where there was no usable date and no limit.
        suspect: Why the date looks wrong; "" where it does not.
    """

    deadline: float | None
    suspect: str = ""


def deadline(date: datetime | None, *, sight: Sight, most: float | None) -> When:
    """When it happens, at the latest.

    Args:
        date: From the notice, timezone-aware; None where it is blank or unreadable.
        sight: Of the notice's first appearance.
        most: Seconds from the first sight that this kind of notice gives at the most;
            None where it has no limit (maintenance in two weeks).

    Returns:
        Never before the first sight, never later than it plus *most*.
    """
    if date is None:
        return When(sight.monotonic + most if most is not None else None, "no usable date")
    left = (date - sight.utc).total_seconds() - sight.skew
    suspect = ""
    if left < 0:
        suspect = f"the date was {-left:.0f} s past when it was first seen"
    elif most is not None and left > most + SLACK_SECONDS:
        suspect = f"the date is {left:.0f} s ahead, at most {most:.0f} s are given"
    left = max(left, 0.0)
    return When(sight.monotonic + (left if most is None else min(left, most)), suspect)


def skew(date_header: str | None, *, utc: datetime) -> float:
    """Seconds that a service's clock is ahead of ours, from its `Date` header.

    Args:
        date_header: RFC 9110 date; anything else counts as no date.
        utc: Our wall clock when the answer came.

    Returns:
        0 where there is no date, or it differs by no more than the header's own coarseness.
    """
    if not date_header:
        return 0.0
    try:
        theirs = parsedate_to_datetime(date_header)
        if theirs.tzinfo is None:
            theirs = theirs.replace(tzinfo=UTC)
        ahead = (theirs - utc).total_seconds()
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
    return ahead if abs(ahead) > SKEW_NOISE_SECONDS else 0.0
