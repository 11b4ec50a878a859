"""The wall clock jumps in the middle of an order, and clocks of a suspended machine run apart: nothing moves.

A real evacd whose time of day is stepped (`stepped.py`), or that lives in a time namespace: time_namespaces(7).
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest

from evac import incident
from evac.incident import summary
from tests.agent.daemon import stepped
from tests.agent.daemon.nodes import Node, until

HOURS = 7 * 3600.0
# Over the restart it jumps the other way.
STEPS = [pytest.param(-HOURS, id="back")]
if os.environ.get("EVAC_NIGHTLY") == "1":
    STEPS.append(pytest.param(HOURS, id="forward"))
APART = (
    "unshare",
    "--time",
    "--fork",
    "--kill-child",
    "--monotonic",
    "100000",
    "--boottime",
    "900000",
)


class Clocked(Node):
    """A node whose wall clock may be stepped, or whose daemon is started through another program."""

    def __init__(self, home: Path, *, before: Sequence[str] = ()) -> None:
        super().__init__(home)
        self._before = before
        self._ahead = home / "ahead"
        self.step(0.0)

    def command(self, *flags: str) -> list[str]:
        _, _, _, _, *rest = super().command(*flags)
        return [*self._before, sys.executable, stepped.__file__, str(self._ahead), *rest]

    def step(self, seconds: float) -> None:
        """From now on it is so far ahead of the machine's."""
        written = self._ahead.with_name("written")
        written.write_text(str(seconds))
        os.replace(written, self._ahead)


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[Clocked]:
    node = Clocked(tmp_path / "node")
    yield node
    node.close()


class Left:
    """A deadline as somebody tells it, again and again: that clock must run like ours."""

    def __init__(self, ask: Callable[[], float]) -> None:
        self._ask = ask
        self._at, self._left = self._look()

    def _look(self) -> tuple[tuple[float, float], float]:
        began, left, ended = _now(), self._ask(), _now()
        return (began, ended), left

    def check(self) -> None:
        """It came as much nearer as time has passed, and by nothing else."""
        (began, ended), left = self._look()
        passed = self._left - left
        # Its clock and ours are one; what it tells is rounded to the millisecond at most.
        assert began - self._at[1] - 0.002 <= passed <= ended - self._at[0] + 0.002


def _now() -> float:
    return time.monotonic()  # noqa: TID251 - beside what a real process reckons


def seconds_left(node: Node) -> float:
    running = node.status()["order"]
    assert running
    return float(running["seconds_left"])


def in_order(node: Node, *, within: float) -> None:
    """The journal says what happened when, and nothing took longer than it did."""
    (found,) = incident.load(node.journal)
    at = [event.at for event in found.events]
    assert at == sorted(at)
    assert 0.0 <= at[0] <= at[-1] <= within
    took = [event.data["seconds"] for event in found.events if event.name.endswith(".finished")]
    assert took
    assert all(0.0 <= one <= within for one in took)


@pytest.mark.parametrize("ahead", STEPS)
def test_a_step_of_the_wall_clock_in_mid_order_moves_nothing_nor_one_over_a_restart(
    clocked: Clocked, tmp_path: Path, ahead: float
) -> None:
    turn = tmp_path / "turn"
    os.mkfifo(turn)
    node = clocked
    node.start("--memory-orphan-seconds", "3600")
    node.staged(3, job="gone").kill()
    index = node.workload("index", mode="callback", need_seconds=300.0, file=str(turn), nbytes=1000)
    job = node.staged(5, priority=5)
    index.do("connect")
    began, wall = _now(), datetime.now(UTC)
    node.drain(600.0)
    node.event("turn.given")  # and it hangs in it, since nobody reads what it writes
    node.event("commit.finished")
    deadlines = [
        Left(lambda: seconds_left(node)),
        Left(lambda: float(job.do("order")["left"])),
        Left(lambda: float(index.do("order")["left"])),
    ]

    node.step(ahead)

    assert job.do("stage", step=6) == {}
    node.knows("job", 6)
    for deadline in deadlines:
        deadline.check()
    reader = Thread(target=turn.read_bytes)
    reader.start()
    until("what was staged after the step is saved, too", lambda: saved(node, 6))
    reader.join()
    outcomes = node.settled()

    assert all(one["kept"] for one in outcomes.values())
    assert {one.split("/")[-1] for one in outcomes} >= {"job", "index"}
    names = [event.name for event in node.events()]
    assert names.count("order.given") == 1
    assert "order.amended" not in names
    in_order(node, within=_now() - began)
    (found,) = incident.load(node.journal)
    # The day on which it began is what the clock said then.
    assert wall - timedelta(seconds=1) <= datetime.fromisoformat(found.began) <= datetime.now(UTC)
    assert summary(found).deadline == pytest.approx(600.0, abs=0.01)
    # A dead one's slots wait for its successor as long as they would have.
    assert node.workload("gone").ready().do("adopt") == {"adopted": [[0, 3, True]]}
    until("the drain is on the disk", lambda: '"operator:' in standing(node))
    node.kill()
    node.step(-ahead)

    node.start()

    until("the drain stands again, on record", lambda: given(node) == 2)
    deadlines[0].check()
    in_order(node, within=_now() - began)


@pytest.mark.parametrize("who", ["daemon", "workload"])
def test_clocks_that_a_suspended_machine_left_apart_are_nobodys_deadline(
    tmp_path: Path, who: str
) -> None:
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a time namespace")
    node = Clocked(tmp_path / "node", before=APART if who == "daemon" else ())
    try:
        node.start()
        job = node.workload(prefix=APART if who == "workload" else ()).ready()
        assert job.do("stage", step=5) == {}
        node.knows("job", 5)
        began = _now()
        node.drain(600.0)
        told = [Left(lambda: seconds_left(node)), Left(lambda: float(job.do("order")["left"]))]
        assert all(one["kept"] for one in node.settled().values())
        for one in told:
            one.check()
        assert 590.0 < seconds_left(node) <= 600.0
        in_order(node, within=_now() - began)
        # The kernel's start times and ours are of one clock: its death is noticed, and its slots are left.
        job.kill()
        node.event("workload.died")
        assert node.workload().ready().do("adopt") == {"adopted": [[0, 5, True]]}
    finally:
        node.close()


def saved(node: Node, step: int) -> bool:
    return any(
        event.name == "commit.finished" and event.data["generation"]["step"] == step
        for event in node.events()
    )


def given(node: Node) -> int:
    return sum(event.name == "order.given" for event in node.events())


def standing(node: Node) -> str:
    path = node.home / "state" / "standing.json"
    return path.read_text() if path.exists() else ""
