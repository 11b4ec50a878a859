"""States x kills: wherever a run is killed, resumed it is, to the bit, one that never was.

The run trains on real ranks, with a real evacd on the node, or with a store alone where the kill
is to come amid the process's own commit. `make test` runs the table; ``EVAC_NIGHTLY=1`` its last
columns for every state.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from tests.agent.daemon.nodes import Node, node_at, until
from tests.handlers.torch import killing
from tests.handlers.torch.cells import (
    AMID,
    BACK,
    CELLS,
    CLOCK,
    DDP,
    FIRST,
    FLUSH,
    FORWARD,
    FSDP,
    MOVING,
    ONE,
    WORLDS,
)
from tests.handlers.torch.killing import Case, half_written
from tests.handlers.torch.ranks import process

# More than an epoch of the loader's; killed in the first, and resumed into the second.
STEPS, KEPT = 9, 4
LIMIT = 180.0
NIGHTLY = pytest.mark.skipif(
    os.environ.get("EVAC_NIGHTLY") != "1", reason="takes a minute: EVAC_NIGHTLY=1 runs it"
)

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
    store = f"file://{tmp_path}/store" if kill == FLUSH else ""
    socket = "" if store else str(node.socket)
    job = f"{state}-{kill}".replace(" ", "-")
    killed = f"{tmp_path}/killed"
    case = Case(state, WORLDS[state], killed, job, STEPS, socket, store, killed=kill, kept=KEPT)

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


@pytest.mark.parametrize("state", [ONE, DDP])
def test_a_stock_loader_resumes_to_the_bit(node: Node, tmp_path: Path, state: str) -> None:
    """Killed after three batches of two workers, with more of them on the way."""
    job, alone = f"stock-{state}".replace(" ", "-"), f"{tmp_path}/whole"
    whole = Case(state, WORLDS[state], alone, job, STEPS, store=f"file://{alone}/s", stock=True)
    case = replace(whole, folder=f"{tmp_path}/killed", store="", socket=str(node.socket))
    run(replace(case, killed=FORWARD, kept=3))
    until("the daemon has seen them die", lambda: dead(node, job))
    resumed = run(replace(case, folder=f"{tmp_path}/resumed"))
    for one, other in zip(resumed, run(whole), strict=True):
        assert one["first"] == 3
        assert one["losses"] == {k: v for k, v in other["losses"].items() if int(k) > 3}
        assert one["digests"] == other["digests"]


def steps_staged(case: Case) -> list[int]:
    """By all ranks, as they tell."""
    told = [Path(case.folder, f"{rank}.staged") for rank in range(case.world)]
    every = [set(map(int, one.read_text().split())) if one.exists() else set() for one in told]
    return sorted(set.intersection(*every))


def newest_with(node: Node, case: Case) -> int:
    """The newest step that the daemon holds of all ranks of a job; 0 for none."""
    steps = [
        {slot["step"] for slot in one["slots"] if slot["state"] == "complete"}
        for one in node.status()["workloads"]
        if one["job"] == case.job
    ]
    return max(set.intersection(*steps), default=0) if len(steps) == case.world else 0


def killed_amid_flush(node: Node, case: Case) -> None:
    """While training goes on: as often as it takes to meet a generation that is half written."""

    def half() -> list[Path]:
        return [one for one in node.store.glob(f"*/{case.job}/step-*") if half_written(one)]

    until("something is staged", lambda: steps_staged(case))
    torn: list[Path] = []
    while not torn:
        node.drain(600.0)
        until("a flush is half done", half)
        node.kill()
        torn = half()
        node.start()
    staged = steps_staged(case)[-1]
    until("it stages with the daemon again", lambda: newest_with(node, case) > staged)
    node.cancel()
    Path(case.folder, "die").touch()


def staged_by_the_clock(case: Case) -> None:
    """Until it leaves out steps, and has staged after that."""

    def gaps() -> list[int]:
        staged = steps_staged(case)
        return [after - before for before, after in pairwise(staged) if after - before > 1]

    until("steps are left out", lambda: len(gaps()) > 2)
    Path(case.folder, "die").touch()


@pytest.mark.parametrize(
    ("state", "kill"),
    [
        pytest.param(
            state, kill, marks=() if (state, kill) in FIRST else NIGHTLY, id=f"{state}-{kill}"
        )
        for state in WORLDS
        for kill in MOVING
    ],
)
def test_killed_at_full_speed_it_is_resumed_to_the_bit(
    node: Node, tmp_path: Path, state: str, kill: str, record_property: Any
) -> None:
    record_property("kills", (state, kill))
    job, socket = f"{state}-{kill}".replace(" ", "-"), str(node.socket)
    case = Case(
        state, WORLDS[state], f"{tmp_path}/killed", job, 10_000, socket, killed=kill,
        clock=kill == CLOCK,
    )  # fmt: skip
    meanwhile = partial(killed_amid_flush, node) if kill == AMID else staged_by_the_clock

    run(case, lambda: meanwhile(case))

    until("the daemon has seen them die", lambda: dead(node, job))
    staged = steps_staged(case)[-1]
    steps = staged + 6
    resumed = run(replace(case, folder=f"{tmp_path}/resumed", killed="", steps=steps))
    alone, store = f"{tmp_path}/whole", f"file://{tmp_path}/store"
    whole = Case(state, case.world, alone, "whole", steps, store=store, clock=True)
    for one, other in zip(resumed, run(whole), strict=True):
        # What was staged last may not have been told any more.
        assert staged <= one["first"] == resumed[0]["first"]
        assert one["losses"] == {k: v for k, v in other["losses"].items() if int(k) > one["first"]}
        assert one["digests"] == other["digests"]


def test_the_ranks_of_a_state_see_different_data(
    uninterrupted: dict[str, list[Report]],
) -> None:
    """Else equal losses would prove little."""
    for state in (DDP, FSDP):
        one, other = uninterrupted[state]
        assert one["losses"] != other["losses"]
        assert one["digests"]["random numbers"] != other["digests"]["random numbers"]
