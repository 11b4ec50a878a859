"""Real training with a real evacd, at both ends of their lives."""

from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from evac.commit import State, survey
from evac.generation import Generation
from evac.show import render_status
from evac.store import open_store
from evac.torch import blocking
from tests.agent.daemon.nodes import Node, node_at, until
from tests.handlers.torch import scenes
from tests.handlers.torch.ranks import process


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from node_at(tmp_path / "node")


def start(world: int, act: Any, *args: Any) -> list[BaseProcess]:
    return [process(act, rank, world, *args) for rank in range(world)]


def ended_well(jobs: list[BaseProcess]) -> bool:
    for job in jobs:
        job.join(180)
    return [job.exitcode for job in jobs] == [0] * len(jobs)


def whole(node: Node) -> list[Generation]:
    """The complete generations in the store, newest first."""
    folders = [path.parent for path in node.store.glob("*/run/step-*")]
    if not folders:
        return []
    prefix = str(folders[0].relative_to(node.store))
    found = blocking.run(lambda: survey(open_store(f"file://{node.store}"), prefix))
    return [one.generation for one in found if one.state is State.COMPLETE]


def staged(node: Node, ranks: int) -> int:
    """The newest step that the daemon holds of all ranks; 0 for none."""
    steps = [
        {slot["step"] for slot in one["slots"] if slot["state"] == "complete"}
        for one in node.status()["workloads"]
    ]
    return max(set.intersection(*steps), default=0) if len(steps) == ranks else 0


@pytest.mark.parametrize("world", [1, 2])
def test_a_run_that_ends_normally_leaves_its_newest_generation_in_the_store(
    node: Node, tmp_path: Path, world: int
) -> None:
    node.start()

    assert ended_well(start(world, scenes.finish, str(tmp_path), str(node.socket), 4))

    until("the last step is whole", lambda: whole(node)[:1] == [Generation(1, 4)])


def test_a_job_that_ends_again_on_the_same_node_is_saved_again(node: Node, tmp_path: Path) -> None:
    node.start()
    for steps in (2, 4):
        folder = tmp_path / str(steps)
        folder.mkdir()
        assert ended_well(start(1, scenes.finish, str(folder), str(node.socket), steps))
        newest = Generation(steps // 2, steps)
        until("the last step is whole", lambda newest=newest: whole(node)[:1] == [newest])  # type: ignore[misc] # binds the loop's variable


def test_who_throws_away_what_was_staged_leaves_nothing_to_save(node: Node, tmp_path: Path) -> None:
    node.start()

    assert ended_well(start(1, scenes.finish, str(tmp_path), str(node.socket), 4, True))

    until("it is gone", lambda: not node.status()["workloads"])
    assert whole(node) == []


def test_the_status_tells_how_often_a_job_stages_and_what_that_is_worth(
    node: Node, tmp_path: Path
) -> None:
    node.start()
    over = tmp_path / "over"
    jobs = start(
        1, scenes.go_on, str(tmp_path), str(node.socket), f"file://{node.store}", str(over)
    )

    (told,) = until("it has told its interval", lambda: node.status()["intervals"])

    assert told["unit"].endswith("/run")
    assert 0 < told["interval"] < 60
    assert 0 < told["stall"] < 60
    assert told["between"] > 3600  # assumed, where nothing is known
    assert told["shares"]["stalls"] == pytest.approx(told["stall"] / told["interval"])
    assert told["verdict"].startswith("a net consumer" if told["net_consumer"] else "of 100 GPU")
    page = render_status(node.status())
    assert f"interval {told['unit']} stages every " in page
    over.touch()
    assert ended_well(jobs)
    until("the dead tell nothing", lambda: not node.status()["intervals"])


@pytest.mark.parametrize("world", [1, 2])
def test_a_daemon_that_is_killed_is_replaced_by_the_own_store_until_it_is_back(
    node: Node, tmp_path: Path, world: int
) -> None:
    node.start()
    over = tmp_path / "over"
    store = f"file://{node.store}"
    jobs = start(world, scenes.go_on, str(tmp_path), str(node.socket), store, str(over))
    until("something is staged", lambda: staged(node, world))

    node.kill()

    alone = until("it is saved without a daemon", lambda: whole(node))[0]
    assert alone.incarnation == 1

    node.start()

    until("it is staged with the daemon again", lambda: staged(node, world) > alone.step)
    over.touch()
    assert ended_well(jobs)
    last = int((tmp_path / "last").read_text())
    until("the last step is whole", lambda: whole(node)[:1] == [Generation(1, last)])
