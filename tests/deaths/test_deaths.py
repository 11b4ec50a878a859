"""Every death at every moment: nothing is lost that was staged, nothing looks whole that is not.

The cells are played on machines of their own, some at once; a table of them is printed at the end.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import until
from tests.deaths.dying import DEATHS
from tests.deaths.machine import Machine
from tests.deaths.moments import MOMENTS, Scene
from tests.deaths.nursery import Nursery

AT_ONCE = 5


def play(nursery: Nursery, home: Path, death: str, moment: str) -> None:
    """One cell."""
    victims, befalls, holds = DEATHS[death]
    keep = "1" if moment == "retention" else "3"
    machine = Machine(nursery, home, "--store-keep", keep)
    try:
        scene = Scene(machine, victims, forks=death == "its fork children alive")
        MOMENTS[moment](scene)
        befalls(scene)
        holds(scene)
    finally:
        machine.close()


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


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("death", DEATHS)
def test_nothing_that_was_staged_is_lost_and_nothing_torn_looks_whole(
    cells: dict[tuple[str, str], "Future[None]"],
    death: str,
    moment: str,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("deaths", (death, moment))
    cells[death, moment].result()


CELL = test_nothing_that_was_staged_is_lost_and_nothing_torn_looks_whole.__name__


@pytest.mark.parametrize("dies", ["workload SIGKILLed", "both die"])
def test_what_nobody_adopts_is_freed_after_its_time(
    machines: Callable[..., Machine], dies: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("deaths", (dies, "past its TTL"))
    machine = machines("--memory-orphan-seconds", "1.5")
    scene = Scene(machine, DEATHS[dies][0])
    MOMENTS["complete"](scene)
    DEATHS[dies][1](scene)
    if dies == "both die":
        machine.start()
    until("it is saved", lambda: machine.saved(2))
    until("all memory is free", lambda: not machine.status()["memory"]["used"])
    until("the fd store is empty", lambda: not machine.manager.names())
    machine.complete()
