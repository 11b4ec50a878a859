"""States x kills: wherever a run is killed, resumed it is, to the bit, one that never was.

The run trains on real ranks, with a real evacd on the node, or with a store alone where the kill
is to come amid the process's own commit.
"""

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from tests.agent.daemon.nodes import Node, node_at, until
from tests.handlers.torch import killing
from tests.handlers.torch.cells import BACK, CELLS, DDP, FLUSH, FSDP, WORLDS
from tests.handlers.torch.killing import Case
from tests.handlers.torch.ranks import process

# More than an epoch of the loader's; killed in the first, and resumed into the second.
STEPS, KEPT = 9, 4
LIMIT = 90.0

Report = dict[str, Any]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    for node in node_at(tmp_path_factory.mktemp("node")):
        node.start()
        yield node


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Report]]:
    """What each state comes to by itself; nothing is saved, so that nothing can depend on it."""
    found = {}
    for state, world in WORLDS.items():
        folder = tmp_path_factory.mktemp("whole")
        case = Case(state, world, str(folder), "whole", STEPS, store=f"file://{folder}/store")
        found[state] = run(case)
    return found


def run(case: Case, meanwhile: Callable[[], None] = lambda: None) -> list[Report]:
    """The reports of all ranks; none where they are killed.

    Args:
        meanwhile: Done once they are started.
    """
    Path(case.folder).mkdir(parents=True, exist_ok=True)
    ranks = [process(killing.train, case, rank) for rank in range(case.world)]
    try:
        meanwhile()
    except BaseException:
        for rank in ranks:
            rank.kill()
        raise
    if case.killed:
        # As a launcher does: once one is dead, all are killed.
        ended = wait([rank.sentinel for rank in ranks], LIMIT)
        first = [rank.exitcode for rank in ranks if rank.sentinel in ended]
        for rank in ranks:
            rank.kill()
        assert -signal.SIGKILL in first, first
    for rank in ranks:
        rank.join(LIMIT)
    codes = [rank.exitcode for rank in ranks]
    if case.killed:
        assert 0 not in codes, codes
        return []
    assert codes == [0] * case.world
    return [json.loads(Path(case.folder, str(rank)).read_text()) for rank in range(case.world)]


def killed_and_back(node: Node, case: Case) -> None:
    """It dies and comes back while all ranks are between two steps."""
    waits = [Path(case.folder, f"{rank}.waits") for rank in range(case.world)]
    until("all ranks wait", lambda: all(one.exists() for one in waits))
    node.kill()
    node.start()
    Path(case.folder, "back").touch()


def dead(node: Node, job: str) -> bool:
    mine = [one for one in node.status()["workloads"] if one["job"] == job]
    return not any(one["alive"] for one in mine)


@pytest.mark.parametrize(("state", "kill"), CELLS, ids=[f"{s}-{k}" for s, k in CELLS])
def test_resumed_it_equals_one_that_was_never_killed(
    uninterrupted: dict[str, list[Report]],
    node: Node,
    tmp_path: Path,
    state: str,
    kill: str,
    record_property: Any,
) -> None:
    record_property("kills", (state, kill))
    keeper = (
        {"store": f"file://{tmp_path}/store"} if kill == FLUSH else {"socket": str(node.socket)}
    )
    job = f"{state}-{kill}".replace(" ", "-")
    case = Case(
        state, WORLDS[state], f"{tmp_path}/killed", job, STEPS, killed=kill, kept=KEPT, **keeper
    )

    run(case, (lambda: killed_and_back(node, case)) if kill == BACK else (lambda: None))
    if kill == FLUSH:
        assert list(tmp_path.glob(f"store/*/*/step-{KEPT + 1}.*")), "killed before the commit"
        assert not list(tmp_path.glob(f"store/*/*/step-{KEPT + 1}.*/.metadata"))
    else:
        until("the daemon has seen them die", lambda: dead(node, job))
    resumed = run(replace(case, folder=f"{tmp_path}/resumed", killed=""))

    for one, other in zip(resumed, uninterrupted[state], strict=True):
        assert one["first"] == KEPT
        assert one["losses"] == {k: v for k, v in other["losses"].items() if int(k) > KEPT}
        assert one["digests"] == other["digests"]


def test_the_ranks_of_a_state_see_different_data(
    uninterrupted: dict[str, list[Report]],
) -> None:
    """Else equal losses would prove little."""
    for state in (DDP, FSDP):
        one, other = uninterrupted[state]
        assert one["losses"] != other["losses"]
        assert one["digests"]["random numbers"] != other["digests"]["random numbers"]
