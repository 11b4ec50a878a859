"""evacd as a service of a machine that was really booted."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.systemd.conftest import installed
from tests.systemd.machine import BIN, PYTHON, ROOT, Machine, until

WORKLOAD = ROOT / "tests/systemd/workload.py"
README = ROOT / "systemd/README.md"


def workload(machine: Machine, kind: str) -> str:
    """A unit with a workload of an ordinary user, once the daemon knows it; its name."""
    unit = f"workload-{kind}.service"
    if machine.call("systemctl", "is-active", unit).returncode == 0:
        # Sooner back on board than one that looks for the daemon every few seconds.
        machine.do("systemctl", "restart", unit)
    else:
        machine.do(
            "systemd-run", f"--unit={unit}", "--uid=daemon", "--property=SyslogIdentifier=workload",
            PYTHON, "-u", str(WORKLOAD), kind,
        )  # fmt: skip
    job = {"staged": "train", "callback": "index"}[kind]
    until(f"{job} is on board", lambda: on_board(machine, job))
    return unit


def on_board(machine: Machine, job: str) -> bool:
    """The daemon knows the job, and what a staged one has staged."""
    workloads: list[dict[str, Any]] = (machine.status() or {}).get("workloads", [])
    return any(
        one["job"] == job
        and (job == "index" or any(slot["state"] == "complete" for slot in one["slots"]))
        for one in workloads
    )


def test_it_is_ready_when_it_listens_and_says_so(machine: Machine) -> None:
    assert machine.show("evacd", "ActiveState") == "active"
    assert machine.show("evacd", "StatusText") == "listening"
    assert machine.show("evacd", "UnitFileState") == "enabled"
    assert machine.status() is not None


def test_systemd_takes_the_unit_as_it_was_meant(machine: Machine) -> None:
    # Where this machine may not raise a limit, systemd does not either: so what it has read.
    told = {
        name: machine.show("evacd", name)
        for name in ("OOMScoreAdjust", "LimitNOFILE", "LimitMEMLOCK", "FileDescriptorStoreMax",
                     "KillMode", "Restart", "RestartPreventExitStatus", "DefaultDependencies")
    }  # fmt: skip

    assert told == {
        "OOMScoreAdjust": "-900", "LimitNOFILE": "65536", "LimitMEMLOCK": "infinity",
        "FileDescriptorStoreMax": "8192", "KillMode": "mixed", "Restart": "always",
        "RestartPreventExitStatus": "2", "DefaultDependencies": "yes",
    }  # fmt: skip


def test_a_shutdown_will_wait_for_it(machine: Machine) -> None:
    until("the lock is held", lambda: "evacd" in machine.do("systemd-inhibit", "--list"))
    delay = machine.do(
        "busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1",
        "org.freedesktop.login1.Manager", "InhibitDelayMaxUSec",
    )  # fmt: skip

    assert delay.split() == ["t", "120000000"]


def test_an_admin_of_its_group_may_give_orders_and_a_stranger_may_not(machine: Machine) -> None:
    cancel = [str(BIN / "evac"), "drain", "--cancel"]

    member = machine.call("setpriv", "--reuid=65534", "--regid=65534", "--groups=evac", *cancel)
    stranger = machine.call("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *cancel)

    assert "no drain by an operator is running" in member.stderr
    assert "ermission denied" in stranger.stderr


def test_a_restart_leaves_the_sockets_usable(machine: Machine) -> None:
    workload(machine, "staged")
    folder = machine.do("stat", "--format=%i", "/run/evac")
    before = machine.show("evacd", "MainPID")

    machine.do("systemctl", "restart", "evacd")

    assert machine.show("evacd", "MainPID") != before
    until("the workload is back", lambda: on_board(machine, "train"))
    # A container that mounts the folder still sees the sockets.
    assert machine.do("stat", "--format=%i", "/run/evac") == folder


def test_one_that_stands_still_is_killed_and_started_again(machine: Machine) -> None:
    machine.write(
        "/run/systemd/system/evacd.service.d/watchdog.conf", "[Service]\nWatchdogSec=2s\n"
    )
    machine.do("systemctl", "daemon-reload")
    machine.do("systemctl", "restart", "evacd")
    before = machine.show("evacd", "MainPID")

    machine.do("kill", "-STOP", before)

    until(
        "another evacd runs",
        lambda: (
            machine.show("evacd", "MainPID") not in {"0", before}
            and machine.show("evacd", "ActiveState") == "active"
        ),
    )
    assert machine.has("systemd", "evacd.service: Failed with result 'watchdog'")
    assert machine.status() is not None
    machine.do("rm", "/run/systemd/system/evacd.service.d/watchdog.conf")


def test_a_wrong_setting_is_told_and_not_tried_for_ever(machine: Machine) -> None:
    machine.write(
        "/run/systemd/system/evacd.service.d/wrong.conf", "[Service]\nEnvironment=EVAC_CLOUD=moon\n"
    )
    machine.do("systemctl", "daemon-reload")

    refused = machine.call("systemctl", "restart", "evacd")

    machine.do("rm", "/run/systemd/system/evacd.service.d/wrong.conf")
    assert refused.returncode != 0
    assert machine.show("evacd", "ActiveState") == "failed"
    assert machine.has("evacd", "EVAC_CLOUD: notice.cloud: expected one of")
    machine.do("systemctl", "daemon-reload")
    machine.do("systemctl", "start", "evacd")


def test_a_stop_during_an_order_finishes_the_flush_first(machine: Machine) -> None:
    workload(machine, "staged")
    unit = workload(machine, "callback")
    machine.do(str(BIN / "evac"), "drain", "--seconds", "60", "--no-wait")
    until("its turn has begun", lambda: machine.has("workload", "turn begun"))

    machine.do("systemctl", "stop", "evacd")

    assert machine.show("evacd", "Result") == "success"
    assert machine.show(unit, "ActiveState") == "active"
    told = order_of(machine, "turn begun", "turn done", "report.written", "daemon.stopped")
    assert told == ["turn begun", "turn done", "report.written", "daemon.stopped"]
    # With the whole hardening on, a body is the workload's own file.
    bodies = machine.do("find", "/srv/checkpoints", "-name", "part0.bin", "-printf", "%u %s\n")
    assert bodies.splitlines()
    assert set(bodies.split("\n")) == {f"daemon {4 << 20}", ""}
    machine.do(str(BIN / "evac"), "verify", "file:///srv/checkpoints")


def test_with_all_its_hardening_it_reaches_an_object_store(machine: Machine) -> None:
    if find_spec("moto") is None or find_spec("boto3") is None:
        pytest.skip("moto[server] or boto3 is not installed: make setup")
    keys = ("AWS_ACCESS_KEY_ID=evac", "AWS_SECRET_ACCESS_KEY=secret")
    store = "s3://checkpoints/here?endpoint=http://127.0.0.1:5000&region=us-east-1"
    moto = [PYTHON, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "5000"]
    machine.do("systemd-run", "--unit=moto", *moto)
    bucket = (
        "from urllib.request import Request, urlopen; "
        "urlopen(Request('http://127.0.0.1:5000/checkpoints', method='PUT'))"
    )
    until("moto answers", lambda: machine.call(PYTHON, "-c", bucket).returncode == 0)
    machine.write(
        "/run/systemd/system/evacd.service.d/zz-s3.conf",
        f"[Service]\nEnvironment=EVAC_STORE={store} {' '.join(keys)}\n",
    )
    machine.do("systemctl", "daemon-reload")
    machine.do("systemctl", "restart", "evacd")
    # Another test's drain is still in force: a restart does not end it.
    machine.call(str(BIN / "evac"), "drain", "--cancel")
    workload(machine, "staged")

    machine.do(str(BIN / "evac"), "drain", "--seconds", "60")

    machine.do("env", *keys, str(BIN / "evac"), "verify", store)


def test_a_shutdown_waits_for_the_flush_before_it_stops_workloads(fresh: Machine) -> None:
    machine = installed(fresh)
    units = [workload(machine, "staged"), workload(machine, "callback")]
    until("the lock is held", lambda: "evacd" in machine.do("systemd-inhibit", "--list"))

    # It may end before it has answered.
    machine.call("systemctl", "poweroff")
    machine.nspawn.wait(60)

    stops = [f"Stopping {unit}" for unit in units]
    told = order_of(machine, "turn begun", "turn done", "report.written", *stops, "daemon.stopped")
    assert told[:3] == ["turn begun", "turn done", "report.written"], machine.tail()
    assert set(told[3:]) >= {*stops, "daemon.stopped"}


def order_of(machine: Machine, *marks: str) -> list[str]:
    """In which order the journal has *marks*, each by its first line from the first mark's on."""
    first: list[str] = []
    for line in machine.lines():
        for mark in marks if first else marks[:1]:
            if mark in line.text and mark not in first:
                first.append(mark)
    return first


def files(machine: Machine) -> list[str]:
    """All that is below /etc, but for where groups are kept: one that was made stays."""
    told = ["-type", "d", "-printf", "%p d %m\\n", "-o", "-printf", "%p %y %m %s %l\\n"]
    found = machine.do("find", "/etc", *told).splitlines()
    groups = ("/etc/group", "/etc/gshadow", "/etc/.pwd.lock", "/etc ")
    return sorted(line for line in found if not line.startswith(groups))


def test_it_is_installed_as_the_readme_says_and_uninstalled_without_a_trace(fresh: Machine) -> None:
    pip, *commands = commands_of(README)
    assert pip.startswith("python3 -m venv /opt/evac && /opt/evac/bin/pip install ")
    fresh.as_if_by_pip("/opt/evac")
    before = files(fresh)

    for command in commands:
        if command.startswith("editor "):
            # The test's only disk is the boot disk, which evacd check would refuse for a store.
            edit = (
                's|^#targets = .*|targets = ["file:///mnt/checkpoints"]|; '
                "s|^#durable_anyway = .*|durable_anyway = true|"
            )
            fresh.do("sed", "--in-place", edit, command.split()[1])
        else:
            fresh.do("sh", "-c", command)

    status = fresh.status()
    assert status is not None
    assert status["targets"] == ["file:///mnt/checkpoints"]
    fresh.do("/opt/evac/bin/evacd", "install")
    fresh.do("/opt/evac/bin/evacd", "uninstall")
    assert fresh.call("systemctl", "cat", "evacd").returncode != 0
    # What somebody wrote stays.
    after = files(fresh)
    left = [line.split()[0] for line in after if line not in before]
    assert left == ["/etc/evac", "/etc/evac/evac.toml"]
    assert [line for line in before if line not in after] == []


def commands_of(page: Path) -> list[str]:
    """The first block of *page*, a command a line."""
    block = page.read_text().split("```\n")[1]
    return [line.partition("  #")[0].strip() for line in block.splitlines()]
