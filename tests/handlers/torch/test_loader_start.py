"""A loader that starts again in the middle of an epoch draws nothing that the run did not.

README's loop, as it stands there, and what else may come between a restore and the first batch.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.handlers.torch.training import Run, wait_committed

# torchdata calls what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")
README = Path(__file__).parents[3] / "README.md"


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """In the main process they are noisy, by torch's and Python's global numbers."""

    def __init__(self, size: int) -> None:
        self._data = torch.randn(size, 8, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, place: int) -> torch.Tensor:
        if torch.utils.data.get_worker_info() is not None:
            return self._data[place]
        return self._data[place] + torch.randn(8) * random.random()


def loader_of(size: int, workers: int, **settings: Any) -> StatefulDataLoader[torch.Tensor]:
    """A stock one: it has no generator of its own."""
    context = "fork" if workers else None
    return StatefulDataLoader(
        Samples(size),
        batch_size=4,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=context,
        **settings,
    )


class Killed(Exception):
    pass


def end(loader: StatefulDataLoader[torch.Tensor]) -> None:
    """Now, and not when the garbage is collected: then its workers are waited for, 5 s each."""
    loader._iterator = None


def readme_loop() -> str:
    text = README.read_text().partition("## Use it in a training loop")[2]
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    return found[1]


def as_in_readme(workers: int, store: str, *, killed_at: int = 0) -> tuple[dict[int, str], str]:
    """Run README's loop with dropout and a schedule; the loss of each step, and what it came to."""
    run = Run()
    loader = loader_of(320, workers)
    random.seed(5)
    losses: dict[int, str] = {}

    def train(batch: torch.Tensor) -> None:
        # The first step of this run is known once its loop has restored.
        step = (names["start"] or 0) + len(losses) + 1
        if killed_at and step == killed_at:
            wait_committed(store, 50, "llama-ft")
            raise Killed
        run.optimizer.zero_grad()
        loss = run.model(batch).square().mean()
        loss.backward()
        run.optimizer.step()
        run.scheduler.step()
        losses[step] = float(loss.item()).hex()

    names: dict[str, Any] = {
        "model": run.model,
        "optimizer": run.optimizer,
        "scheduler": run.scheduler,
        "loader": loader,
        "train": train,
    }
    try:
        exec(compile(readme_loop(), str(README), "exec"), names)
    except Killed:
        names["checkpointer"].close()
    names.clear()
    came_to = run.digest()
    end(loader)
    return losses, came_to


@pytest.mark.parametrize("workers", [0, 2])
def test_readmes_loop_resumes_to_the_bit(
    store: str, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("EVAC_STORE", f"{store}/whole")
    whole, came_to = as_in_readme(workers, f"{store}/whole")
    assert len(whole) == 80
    monkeypatch.setenv("EVAC_STORE", f"{store}/killed")
    as_in_readme(workers, f"{store}/killed", killed_at=57)
    resumed, digest = as_in_readme(workers, f"{store}/killed")
    assert resumed == {step: loss for step, loss in whole.items() if step > 50}
    assert digest == came_to


def epochs(
    store: str, loader: StatefulDataLoader[torch.Tensor], first: int, last: int
) -> tuple[dict[int, str], str]:
    """From a restored step to *last*, over as many epochs as that takes."""
    run = Run()
    random.seed(5)
    losses = {}
    with run.saver(store=store, loader=loader, every=1000) as saver:
        step = saver.restore() or 0
        assert step == first

        def batches() -> Iterator[torch.Tensor]:
            while True:
                yield from loader

        for batch in batches():
            step += 1
            run.optimizer.zero_grad()
            loss = run.model(batch).square().mean()
            loss.backward()
            run.optimizer.step()
            run.scheduler.step()
            losses[step] = float(loss.item()).hex()
            if step == last:
                assert saver.stage(step)
                break
    end(loader)
    return losses, run.digest()


@pytest.mark.parametrize(
    ("workers", "settings", "at"),
    [
        (0, {}, 3),
        (0, {}, 6),  # an epoch's last batch: the next start is the uninterrupted run's, too
        (0, {}, 7),
        (2, {"persistent_workers": True}, 4),
        (2, {}, 6),
    ],
)
def test_wherever_in_an_epoch_it_is_resumed_the_numbers_go_on(
    store: str, workers: int, settings: dict[str, Any], at: int
) -> None:
    def fresh() -> StatefulDataLoader[torch.Tensor]:
        torch.manual_seed(1)
        return loader_of(24, workers, **settings)

    whole, came_to = epochs(f"{store}/a", fresh(), 0, 14)
    epochs(f"{store}/b", fresh(), 0, at)
    resumed, digest = epochs(f"{store}/b", fresh(), at, 14)
    assert resumed == {step: loss for step, loss in whole.items() if step > at}
    assert digest == came_to


def committed_run(store: str, loader: Any) -> None:
    run = Run()
    run.train()
    iter(loader)
    with run.saver(store=store, loader=loader) as saver:
        assert saver.stage(1)
        wait_committed(store, 1)


def test_what_others_draw_before_the_first_batch_is_not_taken_back(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    committed_run(store, loader_of(24, 0))
    run, loader = Run(), loader_of(24, 0)
    with run.saver(store=store, loader=loader) as saver:
        assert saver.restore() == 1
        before = torch.get_rng_state()
        drawn = torch.rand(3)
        iter(loader)
        now = torch.get_rng_state()
        iter(loader)  # not the first one: as every other
        run.model(torch.ones(1, 8))
    torch.set_rng_state(before)
    assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(torch.get_rng_state(), now)
    assert "were drawn" not in caplog.text


class Shuffled:
    """A loader of one's own, whose start draws from the global numbers, or from none."""

    def __init__(self, *, draws: bool) -> None:
        self._draws = draws

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self._draws:
            torch.randperm(24)
        return iter([torch.ones(1, 8)])

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


@pytest.mark.parametrize("draws", [True, False])
def test_a_loader_of_another_kind_whose_start_draws_is_named_once(
    store: str, caplog: pytest.LogCaptureFixture, draws: bool
) -> None:
    committed_run(store, Shuffled(draws=draws))
    run, loader = Run(), Shuffled(draws=draws)
    with run.saver(store=store, loader=loader) as saver:
        assert saver.restore() == 1
        for batch in [*loader, *loader]:
            run.model(batch)
    assert caplog.text.count("start of Shuffled") == draws
