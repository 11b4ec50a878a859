"""Where each of a loader's workers stands, after so many batches.

A `DataLoader` has its workers make batches in turn (``in_order``, torch 2.9-2.14): batch n is worker
n mod W's. Each batch brings how its worker stood once it was made; so whatever they have made ahead, it is
known of each how it stood when the last batch that was *taken* is the last that was made.

A resumed loader begins with its first worker again. So it begins where a round did, each worker as it stood
there, and what had been taken since is made once more and thrown away: fewer batches than there
are workers, which make them beside each other. Turned down: to begin with the next worker's
batch and give the first worker that one's numbers, after which `get_worker_info` has another id and seed than it
had; and batches of nothing, to pass over the first workers, which not every dataset and collate can make.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evac.torch.worker_numbers import Numbers


@dataclass(frozen=True)
class Rounds:
    """After so many batches of an epoch.

    Attributes:
        taken: Batches.
        begun: How many had been when the newest round began of which it is known how all workers stood: this
            one, unless a batch before it could not be made.
        began: How each stood then: None as its seed has it, before its first batch.
        now: How it stands.
        unknown: The workers of which that is not known, after a batch that could not be made.
    """

    taken: int
    begun: int
    began: Sequence[Numbers | None]
    now: Sequence[Numbers | None]
    unknown: frozenset[int] = frozenset()

    @classmethod
    def at(cls, taken: int, began: Sequence[Numbers | None]) -> "Rounds":
        """Where a round begins.

        Raises:
            ValueError: None does there.
        """
        if taken % len(began):
            raise ValueError(f"{taken} batches of {len(began)} workers are no whole rounds")
        return cls(taken, taken, began, began)

    def after(self, changed: Numbers | None) -> "Rounds":
        """One batch later.

        Args:
            changed: What its worker's numbers are now, where they are not what they were; None where it
                could not be made.
        """
        worker, taken = self.taken % len(self.now), self.taken + 1
        if changed is None:
            now, unknown = self.now, self.unknown | {worker}
        else:
            stands = {**(self.now[worker] or {}), **changed}
            now = (*self.now[:worker], stands, *self.now[worker + 1 :])
            unknown = self.unknown - {worker}
        if unknown or taken % len(now):
            return Rounds(taken, self.begun, self.began, now, unknown)
        return Rounds.at(taken, now)
