"""The deaths that may befall a workload, its daemon, or the machine; each with what has to hold."""

import json
import os
import shutil
import signal
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.agent.daemon.nodes import until
from tests.deaths.machine import Machine, Worker
from tests.deaths.moments import Scene

# Less than the worker's hog takes at once.
_ROOM = 48 << 20


def plain(machine: Machine, **settings: Any) -> Worker:
    """A workload's process."""
    return machine.worker(**settings)


def contained(machine: Machine, **settings: Any) -> Worker:
    """One in a pid namespace of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs the right to make a pid namespace")
    return machine.worker(what="contained", **settings)


def hungry(machine: Machine, **settings: Any) -> Worker:
    """One that can be told to eat all memory."""
    fifo = machine.home / f"hog-{len(machine.workers)}"
    os.mkfifo(fifo)
    return machine.worker(hog=str(fifo), **settings)


# --- what befalls -----------------------------------------------------------------------


def killed(scene: Scene) -> None:
    """SIGKILL; also of a container: of the process that its namespace hangs on."""
    scene.victim.kill()


def out_of_memory(scene: Scene) -> None:
    """The kernel's OOM killer chooses it, by the limit of its cgroup."""
    with _limited(scene.victim.process.pid) as kills:
        fifo = scene.machine.home / f"hog-{scene.machine.workers.index(scene.victim)}"
        fifo.write_text("eat")
        scene.victim.process.wait()
        assert "oom_kill 0" not in kills.read_text()


@contextmanager
def _limited(pid: int) -> Iterator[Path]:
    """Yields a file that tells how many the OOM killer took in it."""
    root = Path("/sys/fs/cgroup")
    v1 = (root / "memory" / "memory.limit_in_bytes").exists()
    group = (root / "memory" if v1 else root) / f"evac-test-{pid}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(_ROOM))
        with suppress(OSError):  # no swap is accounted for
            name = "memory.memsw.limit_in_bytes" if v1 else "memory.swap.max"
            (group / name).write_text(str(_ROOM if v1 else 0))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"needs a memory cgroup to limit: {error}")
    try:
        yield group / ("memory.oom_control" if v1 else "memory.events")
    finally:
        until("the cgroup is empty", lambda: _removed(group))


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def stopped(scene: Scene) -> None:
    """SIGSTOP: it lives, and does nothing."""
    scene.victim.process.send_signal(signal.SIGSTOP)


def hung(scene: Scene) -> None:
    """Its one thread of work waits for somebody who never comes."""
    scene.victim.ask("hang")


def daemon_killed(scene: Scene) -> None:
    """SIGKILL of the daemon alone."""
    scene.machine.kill()


def both_killed(scene: Scene) -> None:
    """The daemon first, so that it notices nothing of the others."""
    scene.machine.kill()
    scene.victim.kill()


def rebooted(scene: Scene) -> None:
    """All processes, all memory and /run are gone, the disk stays, and the boot id is another."""
    both_killed(scene)
    machine = scene.machine
    machine.manager.lose()
    shutil.rmtree(machine.home / "run", ignore_errors=True)
    table = machine.home / "state" / "slots.table"
    head = struct.Struct("<8sI36s")
    # Where the sockets lie in memory it lay there, and is gone with it.
    with suppress(FileNotFoundError), table.open("r+b") as file:
        magic, version, _ = head.unpack(file.read(head.size))
        page = head.pack(magic, version, b"0" * 36)
        file.seek(0)
        file.write(page + struct.pack("<I", zlib.crc32(page)))
    standing = machine.home / "state" / "standing.json"
    with suppress(FileNotFoundError):
        document = json.loads(standing.read_text())
        for each in (document, *document.get("notices", [])):
            each["boot"] = "the boot before"
        standing.write_text(json.dumps(document))


# --- what has to hold -------------------------------------------------------------------


def dead(scene: Scene) -> None:
    """Its complete slots are saved, adopted and freed; what it was writing is torn."""
    machine, staged = scene.machine, scene.staged
    machine.complete()
    scene.go_on()
    until(
        f"of it {staged} is left, and no torn slot",
        lambda: (
            {slot["step"] for slot in machine.slots()} == staged
            and all(slot["state"] == "complete" for slot in machine.slots())
        ),
    )
    if staged:
        until("the newest is safe", lambda: machine.saved(max(staged)))
    adopted(scene, machine.worker())
    leaves_nothing(scene)


def returned(scene: Scene) -> None:
    """The same run's next process is there at once, before the daemon knows of the death."""
    successor = scene.machine.worker()
    successor.do("state")
    scene.go_on()
    if scene.staged:
        until("the newest is safe", lambda: scene.machine.saved(max(scene.staged)))
        stranger = scene.machine.worker(run="run-2", rank=1, world=2)
        assert stranger.do("connect")["connected"]
        assert "another run" in stranger.do("adopt")["error"]
        assert stranger.do("leave") == {}
    adopted(scene, successor)
    leaves_nothing(scene)


def forked(scene: Scene) -> None:
    """Like any dead one, though its child keeps the socket open."""
    dead(scene)
    assert scene.child is not None
    assert scene.child_lives()


def mute(scene: Scene) -> None:
    """Who lives but does nothing is saved like the others; what it writes is left alone."""
    machine = scene.machine
    scene.go_on()
    if scene.staged:
        if machine.status()["order"] is None:
            machine.drain(3600.0)
        until("the newest is safe", lambda: machine.saved(max(scene.staged)))
    states = [slot["state"] for slot in machine.slots()]
    assert states.count("writing") == int(scene.writing), states
    scene.victim.kill()
    dead(scene)


def restarted(scene: Scene) -> None:
    """The next daemon has all slots, and the workload goes on with them."""
    machine, victim = scene.machine, scene.victim
    machine.complete()
    if scene.asked:
        assert "error" in victim.answer()
    victim.alone()
    machine.start()
    until("it is on board", lambda: victim.do("connect", seconds=0.1)["connected"])
    until("it has said what it has", lambda: not _waits(machine))
    if not machine.stores and scene.asked:
        # Memory of the dead, which only the daemon had.
        scene.staged = set()
    until("its slots are back", lambda: machine.steps() == scene.staged)
    if scene.writing:
        assert [slot["state"] for slot in machine.slots()].count("writing") == 1
        assert victim.do("finish", step=2) == {}
        machine.knows("job", 2)
    elif not machine.slots() or scene.asked:
        assert victim.do("reserve", incarnation=2) == {}
    assert victim.do("stage", step=3) == {}
    machine.knows("job", 3)
    if machine.status()["order"] is None:
        machine.drain(3600.0)
    until("the newest is safe", lambda: machine.saved(3))
    victim.kill()
    scene.staged = machine.steps()
    assert 3 in scene.staged
    dead(scene)


def _waits(machine: Machine) -> bool:
    """Somebody has not handed its slots back yet."""
    log = machine.log.read_text()
    _, _, last = log.rpartition("daemon.started")
    return "workload.joined" not in last


def both_restarted(scene: Scene) -> None:
    """What the fd store has is all there is; it is as if the workload alone had died."""
    scene.machine.complete()
    scene.machine.start()
    dead(scene)


def booted(scene: Scene) -> None:
    """Memory is gone; the store has what it had, and what only lacked its last file is finished."""
    machine = scene.machine
    before = machine.complete().get("root/job", [])
    finishable = any((machine.store / "root" / "job").glob("*/*.pending"))
    machine.start()
    assert machine.slots() == []
    assert machine.status()["memory"]["used"] == 0
    if finishable and list((machine.store / "root" / "job").glob("*/__0.manifest.json")):
        until("it is finished", lambda: machine.complete().get("root/job", []))
    after = machine.complete().get("root/job", [])
    assert max(after, default=None) == max((*before, *after), default=None)
    scene.staged = set()
    adopted(scene, machine.worker())
    leaves_nothing(scene)


def adopted(scene: Scene, successor: Worker) -> None:
    """All that was left, each bit as it was."""
    until("it is on board", lambda: successor.do("connect", seconds=0.1)["connected"])
    said = successor.do("adopt")["adopted"]
    assert all(right for _, _, right in said), said
    assert {step for _, step, _ in said} == scene.staged
    assert successor.do("reserve", incarnation=7) == {}
    assert successor.do("stage", step=50) == {}
    scene.machine.knows("job", 50)
    # It supersedes what was adopted, once nobody holds that any more.
    assert successor.do("leave") == {}


def leaves_nothing(scene: Scene) -> None:
    """No memory, no fd in the daemon or its store, and what counts is right to the bit."""
    machine = scene.machine
    until("all memory is free", lambda: not machine.status()["memory"]["used"])
    until("the fd store is empty", lambda: not machine.manager.names())
    assert machine.process
    links = Path(f"/proc/{machine.process.pid}/fd")
    until("no fd of a slot is left", lambda: not _memfds(links))
    machine.complete()


def _memfds(links: Path) -> int:
    found = 0
    for link in links.iterdir():
        with suppress(FileNotFoundError):
            found += "memfd:evac-slot" in os.readlink(link)
    return found


Death = tuple[Callable[..., Worker], Callable[[Scene], None], Callable[[Scene], None]]

# Who it befalls, what befalls it, and what has to hold then.
DEATHS: Mapping[str, Death] = MappingProxyType(
    {
        "workload SIGKILLed": (plain, killed, dead),
        "workload out of memory": (hungry, out_of_memory, dead),
        "workload SIGSTOPped": (plain, stopped, mute),
        "hung in a collective": (plain, hung, mute),
        "its container gone": (contained, killed, dead),
        "its fork children alive": (plain, killed, forked),
        "daemon SIGKILLed": (plain, daemon_killed, restarted),
        "the same, no fd store": (plain, daemon_killed, restarted),
        "both die": (plain, both_killed, both_restarted),
        "machine reboots": (plain, rebooted, booted),
        "run id returns": (plain, killed, returned),
    }
)
# Of these a process of the job dies and nothing else befalls it.
FATAL = (
    *("workload SIGKILLed", "workload out of memory", "its container gone"),
    *("its fork children alive", "both die"),
)
