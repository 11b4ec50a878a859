"""`evac leave` waits for what it asked for, over a restart of the daemon as well."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evac.errors import NotConnected
from evac.leave import may_come_back, wait
from evac.wire import Ordered


def told(order: str, *, settled: bool) -> dict[str, Any]:
    state = "kept" if settled else "moving"
    return {"order": order, "unit": "u/j", "state": state, "settled": settled, "seconds_left": 1.0}


class Daemon:
    """Answers as it is told to, one after the other."""

    def __init__(self, *answers: list[dict[str, Any]] | NotConnected) -> None:
        self.answers = list(answers)

    def read(self) -> Mapping[str, Any]:
        answer = self.answers.pop(0)
        if isinstance(answer, NotConnected):
            raise answer
        return {"leaving": answer}


AWAY = NotConnected("/run/evac/evacd.sock", "restarting")


def test_a_daemon_that_was_restarted_is_asked_anew() -> None:
    daemon = Daemon([told("o1", settled=False)], AWAY, [], [told("o2", settled=True)])
    asked: list[Ordered] = []

    def again() -> Ordered:
        asked.append(Ordered("o2", "u/j"))
        return asked[-1]

    found = wait(daemon.read, Ordered("o1", "u/j"), say=None, again=again, within=30.0)

    assert found == told("o2", settled=True)
    assert len(asked) == 1


def test_one_that_is_not_ready_to_begin_anew_is_asked_until_it_is() -> None:
    daemon = Daemon([], [], [], [told("o2", settled=True)])
    answers: list[Ordered | str] = ["nobody of it", "nobody of it", Ordered("o2", "u/j")]

    found = wait(
        daemon.read, Ordered("o1", "u/j"), say=None, again=lambda: answers.pop(0), within=30.0
    )

    assert found == told("o2", settled=True)
    assert answers == []


def test_only_a_daemon_that_was_here_and_keeps_nobody_out_is_waited_for(tmp_path: Path) -> None:
    socket = tmp_path / "evacd.sock"
    gone = not_connected(FileNotFoundError())
    assert not may_come_back(gone, socket)
    (tmp_path / ".evacd.sock.lock").touch()
    assert may_come_back(gone, socket)
    assert may_come_back(not_connected(ConnectionRefusedError()), socket)
    assert not may_come_back(not_connected(PermissionError()), socket)
    assert not may_come_back(gone, tmp_path / "no folder" / "evacd.sock")


def not_connected(cause: OSError) -> NotConnected:
    error = NotConnected("/run/evac/evacd.sock", "it says so")
    error.__cause__ = cause
    return error


def test_why_it_may_not_is_told_in_the_end() -> None:
    found = wait(Daemon([]).read, Ordered("o1", "u/j"), say=None, again=lambda: "nobody of it")

    assert (found["state"], found["reason"]) == ("lost", "nobody of it")


def test_another_order_of_the_same_job_is_not_taken_for_it() -> None:
    daemon = Daemon([told("before", settled=True)])
    assert wait(daemon.read, Ordered("o1", "u/j"), say=None)["state"] == "lost"


def test_a_daemon_that_stays_away_is_told() -> None:
    with pytest.raises(NotConnected):
        wait(Daemon(AWAY).read, Ordered("o1", "u/j"), say=None)
