"""The notices of one source that stand, against what its last valid answer says. Pure.

An event has one notice for as long as it is announced. Its confidence only rises and its
deadline only comes nearer, and that by more than `JITTER_SECONDS`: services that write their
date anew into each answer would amend an order at every poll. Gone from a valid answer is
cancelled, once; what has begun to take the machine may linger before (`Said.linger`).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet

JITTER_SECONDS = 1.0


@dataclass(frozen=True)
class Said:
    """One event as an answer has it.

    Attributes:
        id: Stable for the event; never contains its time.
        deadline: Monotonic seconds, reckoned at this answer.
        dated: What the deadline was reckoned from. While it is the same text, the first
            reckoning holds, so that a step of the wall clock moves nothing.
        gone: Why it will be cancelled, should the next answer not have it.
        linger: Seconds that it stands on where answers no longer have it: a service may drop
            what is done announcing, and not only what was called off.
    """

    id: str
    kind: str
    confidence: Confidence
    deadline: float | None
    dated: str
    detail: str
    gone: str
    linger: float = 0.0


class Standing:
    """Feed it valid answers only; what is unknown neither raises nor cancels anything."""

    def __init__(self, source: str) -> None:
        """Nothing stands."""
        self._source = source
        self._standing: dict[str, tuple[Notice, Said]] = {}
        # Since when answers no longer have what still stands.
        self._missed: dict[str, float] = {}

    def hear(
        self,
        said: Iterable[Said],
        *,
        now: float,
        whole: bool = True,
        over: Collection[str] = (),
    ) -> tuple[Probe, ...]:
        """What an answer means: never empty.

        Args:
            said: Every event of the answer that is this machine's.
            now: Monotonic seconds.
            whole: False where a part could not be read: then nothing is cancelled.
            over: Ids that the answer itself says are over: these do not linger.
        """
        here: dict[str, tuple[Notice, Said]] = {}
        for each in said:
            notice, last = here.get(each.id) or self._standing.get(each.id) or (None, None)
            here[each.id] = self._amended(notice, last, each, now), each
        gone = {} if not whole else {k: v for k, v in self._standing.items() if k not in here}
        self._missed = {k: self._missed.get(k, now) for k in gone}
        here |= {
            id: (notice, last)
            for id, (notice, last) in gone.items()
            if id not in over and now - self._missed[id] < last.linger
        }
        gone = {k: v for k, v in gone.items() if k not in here}
        self._standing = {k: v for k, v in self._standing.items() if k not in gone} | here
        probes: list[Probe] = [Noticed(notice) for notice, _ in here.values()]
        probes += [Cancelled(self._source, id, last.gone) for id, (_, last) in gone.items()]
        return tuple(probes) or (Quiet(self._source),)

    def _amended(self, before: Notice | None, last: Said | None, said: Said, now: float) -> Notice:
        if before is None or last is None:
            return Notice(
                source=self._source,
                kind=said.kind,
                id=said.id,
                confidence=said.confidence,
                deadline=said.deadline,
                seen=now,
                detail=said.detail,
            )
        surer = said.confidence > before.confidence
        same_date = said.dated == last.dated and not surer
        if same_date or not _sooner(said.deadline, before.deadline):
            deadline = before.deadline
        else:
            deadline = said.deadline
        if not surer and deadline == before.deadline:
            return before
        return replace(
            before,
            kind=said.kind if surer else before.kind,
            confidence=max(said.confidence, before.confidence),
            deadline=deadline,
            detail=said.detail,
        )


def _sooner(new: float | None, old: float | None) -> bool:
    if new is None:
        return False
    return old is None or new < old - JITTER_SECONDS
