"""A restart and a stop in the midst of training, with more than a thousand slots on board."""

from typing import Any

import pytest

from tests.systemd.machine import PYTHON, Machine, until
from tests.systemd.test_service import WORKLOAD
from tests.systemd.workload import RANKS, SLOTS

ALL = RANKS * SLOTS


@pytest.fixture
def busy(machine: Machine) -> Machine:
    """With all ranks on board, each of which has staged."""
    machine.write(
        "/run/systemd/system/evacd.service.d/slots.conf",
        "[Service]\nEnvironment=EVAC_MEMORY_SLOTS=16\n",
    )
    machine.do("systemctl", "daemon-reload")
    machine.do("systemctl", "restart", "evacd")
    machine.do(
        "systemd-run", "--unit=many.service", "--uid=daemon", "--property=SyslogIdentifier=many",
        "--property=LimitNOFILE=8192",
        PYTHON, "-u", str(WORKLOAD), "many",
    )  # fmt: skip
    until("all are on board", lambda: len(slots(machine)) == ALL)
    until("all have staged", lambda: common(machine) > 2)
    return machine


def slots(machine: Machine) -> list[dict[str, Any]]:
    """Of all ranks that live."""
    workloads = (machine.status() or {}).get("workloads", [])
    return [slot for one in workloads if one["job"] == "many" for slot in one["slots"]]


def common(machine: Machine) -> int:
    """The newest step that all ranks have complete; 0 for none."""
    workloads = (machine.status() or {}).get("workloads", [])
    steps = [
        {slot["step"] for slot in one["slots"] if slot["state"] == "complete"}
        for one in workloads
        if one["job"] == "many"
    ]
    return max(set.intersection(*steps), default=0) if len(steps) == RANKS else 0


def kept(machine: Machine) -> int:
    return int(machine.show("evacd", "NFileDescriptorStore"))


def memfds(machine: Machine) -> int:
    """Fds of slots that the daemon has open."""
    folder = f"/proc/{machine.show('evacd', 'MainPID')}/fd"
    # Some end as they are listed; those of slots do not.
    listed = machine.call("find", folder, "-printf", "%l\\n").stdout
    assert "incidents.sqlite" in listed
    return listed.count("memfd:evac-slot")


def test_nothing_is_lost_and_nothing_leaks(busy: Machine) -> None:
    machine = busy
    until("systemd has them", lambda: kept(machine) == ALL)
    before, fds = common(machine), memfds(machine)

    machine.do("systemctl", "restart", "evacd")

    # At once, before anybody has come back.
    assert common(machine) >= before
    assert len(slots(machine)) == ALL
    assert kept(machine) == ALL
    until("they train on", lambda: common(machine) > before + 2)
    until("its slots are all there and no more", lambda: memfds(machine) == fds)

    # systemd keeps no fds of a service that it stops, before version 254.
    machine.do("systemctl", "stop", "evacd")
    machine.do("systemctl", "start", "evacd")
    before = max(before, common(machine))

    until("all was handed back", lambda: len(slots(machine)) == ALL)
    until("they train on", lambda: common(machine) > before + 2)
    until("systemd has them again", lambda: kept(machine) == ALL)
    until("its slots are all there and no more", lambda: memfds(machine) == fds)
    assert not machine.has("many", "a slot was lost")

    machine.do("systemctl", "stop", "many")

    until("all that is superseded is let go", lambda: kept(machine) < ALL)
    assert machine.show("evacd", "NRestarts") == "0"
