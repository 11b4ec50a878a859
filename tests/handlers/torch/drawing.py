"""Data that is made of random numbers in whichever process makes it; importable by its workers."""

import io
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from evac.torch import loader_start
from evac.torch.rank_state import load_rng, read_rng

SIZE = 22


def noise() -> float:
    """From all of the global generators."""
    return random.random() + float(np.random.rand()) + float(torch.rand(1))


class Noisy(Dataset[torch.Tensor]):
    """Each sample: its place, noise, and by whom and with which seed it was made."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> torch.Tensor:
        worker = get_worker_info()
        seen = (worker.id, worker.seed % 1_000_003) if worker is not None else (-1, 0)
        # Not as many for each.
        drawn = [noise() for _ in range(1 + place % 3)]
        return torch.tensor([place, sum(drawn), *seen], dtype=torch.float64)


class Own(Noisy):
    """Draws from generators of its own, some deeper down."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(5)
        self.transforms = [Jitter(1), Jitter(2)]

    def __getitem__(self, place: int) -> torch.Tensor:
        drawn = self.rng.random() + sum(one() for one in self.transforms)
        return torch.tensor([place, drawn], dtype=torch.float64)


class Jitter:
    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._random = random.Random(seed)

    def __call__(self) -> float:
        return float(torch.rand(1, generator=self._generator)) + self._random.random()


class Counting(Noisy):
    """Has a state of its own, which its samples show."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __getitem__(self, place: int) -> torch.Tensor:
        self.made += 1
        return torch.cat([super().__getitem__(place), torch.tensor([float(self.made)])])

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


class Stream(IterableDataset[torch.Tensor]):
    """Reads a part in each worker; workers end at different times."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for place in range(first, SIZE, step):
            yield torch.tensor([place, noise()], dtype=torch.float64)


class Going(Stream):
    """Knows its place, and draws where it begins."""

    def __init__(self) -> None:
        self._place = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        noise()  # at once, and not with the first sample
        return self._rest()

    def _rest(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        assert worker is not None
        while self._place < SIZE:
            self._place += 1
            yield torch.tensor([worker.id, self._place, noise()], dtype=torch.float64)
        self._place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._place = state["place"]


@dataclass
class Batch:
    """A class of one's own."""

    values: torch.Tensor
    noise: float


def collated(samples: list[torch.Tensor]) -> Batch:
    """Draws, too."""
    return Batch(torch.stack(samples), noise())


class Masking:
    """Collates, and draws from a generator that it makes with its first batch.

    Args:
        make: Makes that from a seed.
    """

    def __init__(self, make: Callable[[int], Any] = np.random.default_rng) -> None:
        self._make = make
        self.generator: Any = None

    def __call__(self, samples: list[torch.Tensor]) -> tuple[torch.Tensor, float]:
        if self.generator is None:
            worker = get_worker_info()
            self.generator = self._make(worker.id if worker is not None else 7)
        own = self.generator
        drawn = torch.rand(1, generator=own) if isinstance(own, torch.Generator) else own.random()
        return torch.stack(samples), float(drawn)

    collate = __call__


def of_torch(seed: int) -> torch.Generator:
    """For `Masking`."""
    return torch.Generator().manual_seed(seed)


def as_is(samples: Any) -> Any:
    return samples


def seeded(worker: int) -> None:
    """A worker's start of one's own."""
    random.seed(worker + 100)
    np.random.seed(worker + 200)


def plain(batch: Any) -> Any:
    """To compare, and to print."""
    if isinstance(batch, Batch):
        return ("Batch", batch.values.tolist(), batch.noise)
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, list | tuple):
        return [plain(one) for one in batch]
    return batch


def seed(number: int) -> None:
    """All of the global generators."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def end(loader: Any) -> None:
    """Its workers, now, and not when the garbage is collected."""
    if isinstance(loader, StatefulDataLoader):
        loader._iterator = None
    else:
        loader.load_state_dict({})


class Loop:
    """A loop over a loader's epochs, which draws between two batches as training does.

    Args:
        leaves: After so many batches of an epoch; 0 for none.
    """

    def __init__(self, loader: Any, *, leaves: int = 0) -> None:
        self.loader = loader
        self.steps = 0
        self._leaves = leaves

    def run(self, steps: int) -> list[Any]:
        """What the batches up to step *steps* hold, and what was drawn after each."""
        seen = []
        while self.steps < steps:
            for batch in self.loader:
                seen.append((plain(batch), noise()))
                self.steps += 1
                if self.steps == steps or (self._leaves and self.steps % self._leaves == 0):
                    break
        return seen

    def saved(self) -> bytes:
        """As in a checkpoint."""
        stream = io.BytesIO()
        torch.save((self.steps, self.loader.state_dict(), read_rng()), stream)
        return stream.getvalue()

    def restore(self, saved: bytes) -> None:
        """As `Checkpointer.restore` does, in a process of which nothing is known."""
        seed(99)
        model = torch.nn.Linear(1, 1)
        self.steps, state, rng = torch.load(io.BytesIO(saved), weights_only=False)
        self.loader.load_state_dict(state)
        load_rng(rng)
        loader_start.resumed([self.loader], model)


def resumed(make: Callable[[], Any], kept: Sequence[int], steps: int, *, leaves: int = 0) -> None:
    """Assert that a run that is ended and resumed is one that never was.

    Args:
        make: Makes a loader.
        kept: After which step, one after the other.
        steps: All of them.
    """
    seed(3)
    loop = Loop(make(), leaves=leaves)
    whole = loop.run(steps)
    end(loop.loader)
    seed(3)
    loop = Loop(make(), leaves=leaves)
    seen = loop.run(kept[0])
    for step in (*kept[1:], steps):
        saved = loop.saved()
        end(loop.loader)
        loop = Loop(make(), leaves=leaves)
        loop.restore(saved)
        seen += loop.run(step)
    end(loop.loader)
    assert seen == whole
