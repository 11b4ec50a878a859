"""What has been announced and not taken back, for status, pages and metrics. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evacd.facts import Confidence, Notice


@dataclass(frozen=True)
class Standing:
    """A notice that nobody cancelled, at its worst.

    Attributes:
        notice: As it was when it last said anything new.
        confidence: The highest that it ever had.
        deadline: The earliest that it ever had; None where it has no usable one.
        starts_at: When the order starts for it, by what saving everything takes as of now;
            past where it did, None where it only advises.
    """

    notice: Notice
    confidence: Confidence
    deadline: float | None
    starts_at: float | None


def shown(notices: Iterable[Standing], *, now: float) -> list[Mapping[str, Any]]:
    """As JSON takes it: in the order in which they may become the order, advice last."""

    def soonest(one: Standing) -> tuple[bool, float]:
        return one.starts_at is None, one.starts_at or 0.0

    return [
        {
            "source": each.notice.source,
            "kind": each.notice.kind,
            "confidence": each.confidence.word,
            "seconds_left": None if each.deadline is None else each.deadline - now,
            "starts_in": None if each.starts_at is None else max(0.0, each.starts_at - now),
        }
        for each in sorted(notices, key=soonest)
    ]
