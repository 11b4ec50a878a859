"""What a loop counts beside its steps: epochs and samples; and the epoch that its sampler shuffles by.

torch's `DistributedSampler` orders an epoch by its number, and is told it by the loop. A loop that
counts from 0 again after a resume goes through the first epoch's order once more, and nothing shows it;
so the number is kept and put back, and a loop that sets it to an earlier one is told.
"""

from collections.abc import Mapping
from typing import Any

from evac.torch.samplers import samplers


class Progress:
    """How far the loop has come; the same on all ranks.

    Attributes:
        samples: That all ranks have taken, as the loop has told or as was restored.
    """

    def __init__(self, loader: Any) -> None:
        self.samples = 0
        self._epoch: int | None = None
        self._sampler = _sampler(loader)
        # What the loop and the sampler were at, until the first step after that.
        self._restored: tuple[int | None, int | None] = (None, None)

    @property
    def epoch(self) -> int:
        """As the loop has told, else the sampler's; as restored."""
        if self._epoch is not None:
            return self._epoch
        return self._shuffled_by() or 0

    def tell(self, *, epoch: int | None, samples: int | None) -> str:
        """A step has ended; what a person should know, or "".

        Raises:
            ValueError: One of them is negative.
        """
        for name, value in (("epoch", epoch), ("samples", samples)):
            if value is not None and value < 0:
                raise ValueError(f"{name}: expected 0 or more, got {value}")
        self._epoch = self._epoch if epoch is None else int(epoch)
        self.samples = self.samples if samples is None else int(samples)
        restored, self._restored = self._restored, (None, None)
        for now, before in zip((self._epoch, self._shuffled_by()), restored, strict=True):
            if now is not None and before is not None and now < before:
                return (
                    f"this is epoch {now}, and what was restored is of epoch {before}: data comes "
                    "again in the order that it had; go on from Checkpointer.progress.epoch"
                )
        return ""

    def read(self) -> dict[str, int | None]:
        """For `put_back`."""
        return {"epoch": self._epoch, "samples": self.samples, "sampler": self._shuffled_by()}

    def put_back(self, state: Mapping[str, int | None]) -> None:
        """Go on from there, the sampler as well."""
        self._epoch = state["epoch"]
        self.samples = state["samples"] or 0
        if self._sampler is not None and state["sampler"] is not None:
            self._sampler.set_epoch(state["sampler"])
        self._restored = (self._epoch, self._shuffled_by())

    def _shuffled_by(self) -> int | None:
        return int(self._sampler.epoch) if self._sampler is not None else None


def _sampler(loader: Any) -> Any:
    """What is told an epoch, and knows it."""
    for one in samplers(loader).values():
        if callable(getattr(one, "set_epoch", None)) and isinstance(
            getattr(one, "epoch", None), int
        ):
            return one
    return None
