"""What a resume depends on is in the checkpoint, or its lack is said."""

import logging
from typing import Any

import numpy as np
import pytest
import torch

from evac.torch import Checkpointer
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import Run, digest, wait_committed


class Counters:
    """Samples and epochs, as many a loop counts them."""

    def __init__(self) -> None:
        self.samples = self.epoch = 0

    def state_dict(self) -> dict[str, int]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


def generators() -> dict[str, Any]:
    return {
        "sampler": np.random.default_rng(3),
        "old": np.random.RandomState(4),
        "noise": torch.Generator().manual_seed(5),
    }


def draws(given: dict[str, Any]) -> list[float]:
    return [
        float(given["sampler"].random()),
        float(given["old"].random_sample()),
        float(torch.rand(1, generator=given["noise"])),
    ]


def test_registered_generators_go_on_where_they_stood(store: str) -> None:
    run, mine = Run(), generators()
    draws(mine)
    run.train()
    with run.saver(store=store, generators=mine) as saver:
        assert saver.stage(1)
        wait_committed(store, 1)
        expected = draws(mine)

    fresh = generators()
    with Run(seed=9).saver(store=store, generators=fresh) as saver:
        assert saver.restore() == 1
    assert draws(fresh) == expected


def test_a_generator_that_was_not_registered_then_starts_afresh_by_name(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    run.train()
    with run.saver(store=store) as saver:
        assert saver.stage(1)
        wait_committed(store, 1)
    with Run().saver(store=store, generators=generators()) as saver:
        assert saver.restore() == 1
    assert "generators['sampler']" in caplog.text


def test_scaler_average_and_counters_come_back(store: str) -> None:
    def extra(run: Run) -> dict[str, Any]:
        averaged = torch.optim.swa_utils.AveragedModel(
            run.model,
            multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9),  # type: ignore[no-untyped-call] # torch has no types here
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        return {"ema": averaged, "scaler": scaler, "counters": Counters()}

    run = Run()
    kept = extra(run)
    for _ in range(3):
        run.optimizer.zero_grad()
        kept["scaler"].scale(run.model(run.loader.batch()).square().mean()).backward()
        kept["scaler"].step(run.optimizer)
        kept["scaler"].update()
        kept["ema"].update_parameters(run.model)
        kept["counters"].samples += 4
    assert kept["scaler"].get_scale() == 16.0
    with run.saver(store=store, extra=kept) as saver:
        assert saver.stage(3)
        wait_committed(store, 3)

    again = Run(seed=9)
    back = extra(again)
    with again.saver(store=store, extra=back) as saver:
        assert saver.restore() == 3
    assert digest([back[key].state_dict() for key in kept]) == digest(
        [kept[key].state_dict() for key in kept]
    )


def test_a_loader_that_cannot_say_where_it_stands_is_refused_at_once(store: str) -> None:
    plain: Any = torch.utils.data.DataLoader([1, 2])  # type: ignore[arg-type] # a list is a data set
    with pytest.raises(
        ValueError, match=r"loader: expected state_dict.*evac\.torch\.Resumable\(loader\)"
    ):
        Run().saver(store=store, loader=plain)
    with pytest.raises(ValueError, match=r"generators\['x'\]: expected a torch.Generator"):
        Run().saver(store=store, generators={"x": 3})


def test_weights_that_do_not_change_although_the_optimizer_steps_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The model that is saved was copied, once; training goes on with the other one."""
    client, run, other = FakeClient(["file:///x"]), Run(), Run()
    run.train()
    saver = Checkpointer(
        model=run.model, optimizer=run.optimizer, job="j", client=client.as_client(), slots=8
    )
    for step in (1, 2, 3, 4):
        if step > 1:
            other.train()
            # What the optimizer writes to is no longer what the model holds.
            run.optimizer.zero_grad()
            run.optimizer.step()
        assert saver.stage(step)
    assert saver.stats.unchanged == 3
    said = [one for one in caplog.records if "byte for byte" in one.getMessage()]
    assert len(said) == 1


def test_weights_that_may_stay_as_they_are_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    client, run = FakeClient(["file:///x"]), Run()
    saver = run.saver(client=client.as_client(), slots=8)
    run.train()
    assert saver.stage(1)
    assert saver.stage(2)  # no step since
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    run.optimizer.step()
    assert saver.stage(3)  # a step that moves nothing
    run.optimizer.param_groups[0]["lr"] = 0.1
    run.train()
    assert saver.stage(4)
    assert saver.stats.unchanged == 0
    assert "byte for byte" not in caplog.text


def test_stats_and_one_line_say_how_often_and_what_it_is_worth(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "evac")
    client, run = FakeClient(["file:///x"]), Run()
    saver = run.saver(
        client=client.as_client(), slots=1, every=1, reclaim_every=3600.0, restart_seconds=300.0
    )
    assert saver.stats.interval_seconds == 0
    for step in range(1, 6):
        run.train()
        assert saver.step(step)
        client.free(0)  # a slot's first stage takes longer, and is not counted with
    stats = saver.stats
    assert stats.every_steps == 1
    assert stats.interval_seconds > 0
    assert stats.stall_seconds > 0
    assert (stats.restart_seconds, stats.reclaim_seconds) == (300.0, 3600.0)
    assert stats.net_consumer == ""
    said = [one.getMessage() for one in caplog.records if "stages every" in one.getMessage()]
    assert len(said) == 1
    assert "a restart takes 5 min" in said[0]
    assert "reclaimed every 1 h 00 min" in said[0]


def test_a_job_that_gets_nothing_done_says_so_in_its_stats() -> None:
    client, run = FakeClient(["file:///x"]), Run()
    saver = run.saver(
        client=client.as_client(), slots=1, every=1, reclaim_every=60.0, restart_seconds=300.0
    )
    for step in range(1, 5):
        run.train()
        assert saver.step(step)
        client.free(0)
    assert "net consumer of GPU hours" in saver.stats.net_consumer


def test_half_an_accumulated_step_is_never_what_is_resumed(store: str) -> None:
    """Two micro-batches make a step; killed between them, training goes on before the first."""

    def micro(run: Run, losses: list[str], *, last: bool) -> None:
        loss = run.model(run.loader.batch()).square().mean()
        loss.backward()
        losses.append(float(loss.item()).hex())
        if last:
            run.optimizer.step()
            run.scheduler.step()
            run.optimizer.zero_grad()

    def go(run: Run, saver: Checkpointer, start: int, end: int) -> list[str]:
        losses: list[str] = []
        for number in range(start + 1, end + 1):
            micro(run, losses, last=number % 2 == 0)
            saver.step(number)
        return losses

    whole = Run()
    with whole.saver(store=f"{store}/a", every=1) as saver:
        expected = go(whole, saver, 0, 10)
    killed = Run()
    saver = killed.saver(store=f"{store}/b", every=1)
    go(killed, saver, 0, 5)  # the sixth micro-batch never comes
    wait_committed(f"{store}/b", 4)
    saver.close()

    again = Run()
    again.train()  # nothing of what it is now may be left
    again.optimizer.zero_grad()
    with again.saver(store=f"{store}/b", every=1) as saver:
        assert saver.restore() == 4
        assert go(again, saver, 4, 10) == expected[4:]
    assert again.digest() == whole.digest()
