"""The checkpointer with the real board: what was staged outlives whoever staged it."""

import os
import signal
from pathlib import Path

import pytest

from evac.generation import Generation
from tests.handlers.torch import ranks, scenes
from tests.handlers.torch.node import node
from tests.handlers.torch.ranks import process
from tests.handlers.torch.training import Run


@pytest.mark.parametrize("world", [1, 2])
def test_what_a_killed_job_had_staged_is_flushed_and_resumed_from(
    tmp_path: Path, store: str, world: int
) -> None:
    out, again = str(tmp_path / "saved"), str(tmp_path / "again")
    with node(tmp_path, store) as here:
        jobs = [
            process(scenes.stage_and_hang, rank, world, str(tmp_path), str(here.socket), 5, out)
            for rank in range(world)
        ]
        newest = Generation(incarnation=1, step=5)
        unit = here.wait_staged(newest, world)
        for job in jobs:
            assert job.pid is not None
            os.kill(job.pid, signal.SIGKILL)
            job.join(30)
        assert here.flush(unit, newest)
    ranks.run(world, scenes.restore, store, 5, again, out)


def test_an_own_store_and_a_daemon_agree_on_the_place(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    with run.saver(store=store) as saver:
        run.train()
        saver.step(1)
    with node(tmp_path, store) as here:
        monkeypatch.setenv("EVAC_SOCKET", str(here.socket))
        with Run().saver() as again:
            assert again.restore() == 1
            run.train()
            again.stage(2)
            here.wait_staged(Generation(incarnation=2, step=2), 1)
