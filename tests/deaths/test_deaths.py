"""Every death at every moment: nothing is lost that was staged, nothing looks whole that is not.

The cells are played on machines of their own, some at once; a table of them is printed at the end.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import until
from tests.deaths.dying import DEATHS, FATAL
from tests.deaths.machine import Machine, Worker
from tests.deaths.moments import LATER, MOMENTS, Scene
from tests.deaths.nursery import Nursery

AT_ONCE = 5
FORKED = "its fork children alive"
CELLS = [
    *((death, moment) for death in DEATHS for moment in MOMENTS),
    *((death, moment) for death in FATAL for moment in LATER),
]


def play(nursery: Nursery, home: Path, death: str, moment: str) -> None:
    """One cell."""
    scenes: list[Scene] = []
    machine = Machine(
        nursery,
        home,
        "--store-keep", "1" if moment == "retention" else "3",
        "--memory-orphan-seconds", "1.5" if moment == "past its TTL" else "3600",
        stores=death != "the same, no fd store",
    )  # fmt: skip
    try:
        {"past its TTL": expire, "ranks move": move}.get(moment, befall)(
            machine, death, moment, scenes
        )
    finally:
        machine.close()
        for scene in scenes:
            scene.close()


def befall(machine: Machine, death: str, moment: str, scenes: list[Scene]) -> None:
    """It comes at that moment."""
    victims, befalls, holds = DEATHS[death]
    scene = Scene(machine, victims, forks=death == FORKED)
    scenes.append(scene)
    MOMENTS[moment](scene)
    befalls(scene)
    holds(scene)


def expire(machine: Machine, death: str, _moment: str, scenes: list[Scene]) -> None:
    """Nobody adopts what was left: it is saved, and then it is freed."""
    victims, befalls, _ = DEATHS[death]
    scene = Scene(machine, victims, forks=death == FORKED)
    scenes.append(scene)
    MOMENTS["complete"](scene)
    befalls(scene)
    if death == "both die":
        machine.start()
    until("it is saved", lambda: machine.saved(2))
    until("all memory is free", lambda: not machine.status()["memory"]["used"])
    until("the fd store is empty", lambda: not machine.manager.names())
    machine.complete()


def move(machine: Machine, death: str, _moment: str, ranks: list[Scene]) -> None:
    """Both ranks of the node die, and come back as each other."""
    victims, befalls, _ = DEATHS[death]
    machine.start()
    for rank in range(2):
        victim = partial(victims, rank=rank, world=2)
        ranks.append(Scene(machine, victim, forks=death == FORKED))
        ranks[rank].board().ready()
        ranks[rank].fork()
        until("the fd store has its slots", partial(_stored, machine, rank))
    for step in (1, 2):
        for rank, scene in enumerate(ranks):
            assert scene.victim.do("stage", step=step) == {}
            machine.knows("job", step, rank=rank)
    for scene in ranks:
        befalls(scene)
    if death == "both die":
        machine.start()
    until("it is saved", lambda: machine.saved(2))
    everything = [[rank, step, True] for step in (2, 1) for rank in (1, 0)]
    successors = [machine.worker(rank=rank, world=2) for rank in (1, 0)]
    for successor in successors:
        until("it is on board", partial(_aboard, successor))
        assert successor.do("adopt") == {"adopted": everything}
    for successor in successors:
        assert successor.do("leave") == {}
    until("all memory is free", lambda: not machine.status()["memory"]["used"])
    until("the fd store is empty", lambda: not machine.manager.names())
    machine.complete()


def _aboard(worker: Worker) -> bool:
    return bool(worker.do("connect", seconds=0.1)["connected"])


def _stored(machine: Machine, rank: int) -> bool:
    return len(machine.manager.names()) == 3 * (rank + 1)


@pytest.fixture(scope="session")
def cells(
    request: pytest.FixtureRequest, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], "Future[None]"]]:
    """What comes of each cell that is to be tested."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wanted = [
            (str(item.callspec.params["death"]), str(item.callspec.params["moment"]))
            for item in request.session.items
            if isinstance(item, pytest.Function) and item.originalname == CELL
        ]
        homes = tmp_path_factory.mktemp("deaths")
        yield {
            cell: pool.submit(play, nursery, homes / str(number), *cell)
            for number, cell in enumerate(wanted)
        }


@pytest.mark.parametrize(("death", "moment"), CELLS)
def test_nothing_that_was_staged_is_lost_and_nothing_torn_looks_whole(
    cells: dict[tuple[str, str], "Future[None]"],
    death: str,
    moment: str,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("deaths", (death, moment))
    cells[death, moment].result()


CELL = test_nothing_that_was_staged_is_lost_and_nothing_torn_looks_whole.__name__
