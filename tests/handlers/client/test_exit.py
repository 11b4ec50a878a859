"""Real processes that fork, are signalled, and end: no hang, no leak, nothing on stderr.

Each is a script with a client on board; it ends by itself, with the given exit code.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import evac
from tests.handlers.client.honest import LIMIT, Daemon

_ROOT = str(Path(evac.__file__).parent.parent)

_BEGIN = """
import asyncio, atexit, os, signal, sys, threading, time
import evac, evac.aio
from evac.segment import PAGE, Header, SlotState
PATH = sys.argv[1]
def aboard(job="job", **options):
    client = evac.connect(job, socket=PATH, **options)
    assert client.wait_connected(20), client.absence
    return client
def stage(client, step):
    slot = client.acquire(20)
    assert slot is not None, client.last_refusal
    slot.complete(Header(SlotState.COMPLETE, 0, step, 5))
    client.staged(slot, step)
def reserved():
    client = aboard()
    client.reserve(nbytes=16384, body="a.bin", slots=2)
    return client
def fds():
    return len(os.listdir("/proc/self/fd"))
def no_more_than(before):
    # A slot that arrives has an fd until it is mapped.
    for _ in range(1000):
        if fds() <= before:
            return True
        time.sleep(0.01)
    return False
def ready():
    print("ready", flush=True)
"""

SCRIPTS: dict[str, tuple[str, int]] = {
    "ends without closing": ("client = reserved(); stage(client, 1)", 0),
    "ends while it looks for a daemon": (
        "import logging; logging.getLogger('evac').setLevel(logging.ERROR)\n"
        "client = evac.connect('job', socket=PATH + '.none')",
        0,
    ),
    "ends with sys.exit in a thread's face": (
        "client = reserved()\n"
        "threading.Thread(target=lambda: client.acquire(3600), daemon=True).start()\n"
        "sys.exit(7)",
        7,
    ),
    "ends while a turn runs": (
        "client = aboard('turns', mode='callback', need_seconds=5)\n"
        "began = threading.Event()\n"
        "@client.on_turn\n"
        "def save(turn):\n"
        "    began.set(); time.sleep(3600)\n"
        "ready(); assert began.wait(20)",
        0,
    ),
    "ends while an order's callback runs": (
        "client = aboard('orders')\n"
        "began = threading.Event()\n"
        "@client.on_order\n"
        "def heard(order):\n"
        "    began.set(); time.sleep(3600)\n"
        "ready(); assert began.wait(20)",
        0,
    ),
    "closes at exit": ("client = reserved(); atexit.register(client.close); stage(client, 1)", 0),
    "stages at exit": ("client = reserved(); atexit.register(stage, client, 2)", 0),
    "raises": ("client = reserved(); os.dup2(os.open(os.devnull, 1), 2); raise KeyError", 1),
    "is told to end in mid-acquire": (
        "client = reserved()\n"
        "held = client.acquire(20)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "ready()\n"
        "while True: client.acquire(3600)",
        143,
    ),
    "is interrupted in mid-acquire and goes on": (
        "client = reserved()\n"
        "held = client.acquire(20)\n"
        "threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    while True: client.status(); time.sleep(0)\n"
        "except KeyboardInterrupt: pass\n"
        "client.release(held)\n"
        "stage(client, 1); assert client.status()['node']; client.close()",
        0,
    ),
    "is signalled in mid-call without end": (
        "client = reserved()\n"
        "signal.signal(signal.SIGALRM, lambda *_: client.order)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)\n"
        "for step in range(200): stage(client, step + 1)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "assert client.refusals == 0; client.close()",
        0,
    ),
    "uses the client in a signal handler": (
        "client = reserved()\n"
        "seen = []\n"
        "def handler(*_):\n"
        "    stage(client, 100 + len(seen)); seen.append(1)\n"
        "signal.signal(signal.SIGUSR1, handler)\n"
        "for step in range(5): os.kill(os.getpid(), signal.SIGUSR1)\n"
        "assert len(seen) == 5; client.close()",
        0,
    ),
    "stages in a signal handler that comes at any moment": (
        "client = reserved()\n"
        "steps = iter(range(1, 1 << 30))\n"
        "def once(patience):\n"
        "    slot = client.acquire(patience)\n"
        "    if slot is None: return\n"
        "    step = next(steps)\n"
        "    slot.complete(Header(SlotState.COMPLETE, 0, step, 5))\n"
        "    client.staged(slot, step); client.on_order(print)\n"
        "def handler(*_):\n"
        "    once(0.001); signal.setitimer(signal.ITIMER_REAL, 0.0007)\n"
        "signal.signal(signal.SIGALRM, handler)\n"
        "handler()\n"
        "for _ in range(1500): once(1)\n"
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "client.close(); assert client.connection == 1 and client.refusals == 0",
        0,
    ),
    "forks children that end as they like": (
        "client = reserved()\n"
        "before = fds()\n"
        "for number in range(10):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        if number % 2: sys.exit(0)\n"
        "        client.close(); os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "assert no_more_than(before); stage(client, 1); client.close()",
        0,
    ),
    "forks in a thread while it stages": (
        "client = reserved()\n"
        "over = threading.Event()\n"
        "def fork():\n"
        "    for _ in range(15):\n"
        "        child = os.fork()\n"
        "        if child == 0:\n"
        "            assert not client.connected; os._exit(0)\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
        "    over.set()\n"
        "thread = threading.Thread(target=fork); thread.start()\n"
        "step = 0\n"
        "while not over.is_set():\n"
        "    step += 1; stage(client, step)\n"
        "thread.join(); assert client.refusals == 0 and client.connection == 1; client.close()",
        0,
    ),
    "has a child with a client of its own": (
        "client = reserved()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    mine = aboard('child'); mine.close(); sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0; assert client.connected; client.close()",
        0,
    ),
    "runs programs, which inherit nothing": (
        "import subprocess\n"
        "client = reserved()\n"
        "look = 'import os; print([os.readlink(f\"/proc/self/fd/{n}\") for n in os.listdir(\"/proc/self/fd\") '\\\n"
        "    'if os.path.lexists(f\"/proc/self/fd/{n}\")])'\n"
        "for close in (True, False):\n"
        "    told = subprocess.run([sys.executable, '-c', look], close_fds=close, capture_output=True, text=True)\n"
        "    assert 'memfd' not in told.stdout and 'socket' not in told.stdout, told.stdout\n"
        "client.close()",
        0,
    ),
    "leaks nothing over fifty lives": (
        "aboard().close()\n"
        "before, threads = fds(), threading.active_count()\n"
        "for _ in range(50):\n"
        "    client = reserved(); client.acquire(20); client.close()\n"
        "deadline = time.monotonic() + 20\n"
        "while (fds() > before or threading.active_count() > threads) and time.monotonic() < deadline:\n"
        "    time.sleep(0.01)\n"
        "assert fds() <= before, (fds(), before)\n"
        "assert threading.active_count() <= threads",
        0,
    ),
    "is asyncio and ends without closing": (
        "async def main():\n"
        "    client = evac.aio.connect('job', socket=PATH)\n"
        "    await client.__aenter__()\n"
        "    assert await client.wait_connected(20)\n"
        "    await client.reserve(nbytes=16384, body='a.bin')\n"
        "asyncio.run(main())",
        0,
    ),
    "is asyncio and is interrupted": (
        "async def main():\n"
        "    async with evac.aio.connect('job', socket=PATH) as client:\n"
        "        assert await client.wait_connected(20)\n"
        "        ready(); await asyncio.sleep(3600)\n"
        "signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))\n"
        "try: asyncio.run(main())\n"
        "except KeyboardInterrupt: sys.exit(5)",
        5,
    ),
    # Where an interrupt hits is chance; one that comes into a task of the client's is told by nobody but the loop.
    "is asyncio and is interrupted in a task of the client's": (
        "async def hit(): raise KeyboardInterrupt\n"
        "async def main():\n"
        "    async with evac.aio.connect('job', socket=PATH) as client:\n"
        "        assert await client.wait_connected(20)\n"
        "        client._lines.own(hit()); await asyncio.sleep(3600)\n"
        "try: asyncio.run(main())\n"
        "except KeyboardInterrupt: sys.exit(5)",
        5,
    ),
    "is asyncio and has a bug in a task of the client's": (
        "async def hit(): raise LookupError\n"
        "told = []\n"
        "async def main():\n"
        "    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))\n"
        "    async with evac.aio.connect('job', socket=PATH) as client:\n"
        "        client._lines.own(hit()); await asyncio.sleep(0.1)\n"
        "asyncio.run(main())\n"
        "assert [type(one['exception']) for one in told] == [LookupError], told",
        0,
    ),
}  # fmt: skip


def run(path: Path, script: str, *, during: Callable[[int], object] = lambda _: None) -> "tuple[int, str]":  # fmt: skip
    """Its exit code and stderr; *during* is called with its pid once it is ready."""
    with subprocess.Popen(
        # Development mode tells of what was left open, and of a thread that raises.
        [sys.executable, "-X", "dev", "-c", _BEGIN + script, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": _ROOT},
    ) as process:
        assert process.stdout
        if "ready()" in script:
            assert process.stdout.readline() == "ready\n"
            during(process.pid)
        try:
            _, told = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, told


def at_rest(pid: int) -> None:
    """Wait until it sleeps, and has done nothing for a while."""
    seen: list[tuple[str, ...]] = []
    while len(seen) < 10:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        now = (state, *rest[10:12], Path(f"/proc/{pid}/schedstat").read_text())
        seen = [*seen, now] if state == "S" and (not seen or seen[-1] == now) else []
        time.sleep(0.01)


@pytest.mark.parametrize("what", SCRIPTS)
def test_a_process_that(what: str, daemon: Daemon, path: Path) -> None:
    from evac.wire import OrderGiven, Turn

    script, code = SCRIPTS[what]

    def during(pid: int) -> None:
        match what:
            case "ends while a turn runs":
                daemon.tell(Turn(turn=1, seconds=60.0, order="o1"))
            case "ends while an order's callback runs":
                daemon.tell(OrderGiven(order="o1", seconds_left=60.0, confidence="certain"))
            case "is asyncio and is interrupted":
                # In what the standard library does before it waits, it leaves files of its own open.
                at_rest(pid)
                os.kill(pid, signal.SIGTERM)
            case _:
                os.kill(pid, signal.SIGTERM)

    assert run(path, script, during=during) == (code, "")


def test_a_daemon_that_vanishes_at_the_end_is_one_line_at_most(path: Path) -> None:
    daemon = Daemon(path)
    code, told = run(
        path,
        "client = reserved(); stage(client, 1); ready(); sys.stdin.readline; client.close()",
        during=lambda _: daemon.stop(),
    )
    assert code == 0
    assert re.fullmatch(r"(lost evacd at .*\n)?", told)


_SPAWN = """
import multiprocessing, sys
import evac
def child(path):
    import evac.aio
    client = evac.connect("child", socket=path)
    assert client.wait_connected(20)
    client.close()
if __name__ == "__main__":
    client = evac.connect("job", socket=sys.argv[1])
    assert client.wait_connected(20)
    for method in ("spawn", "forkserver", "fork"):
        process = multiprocessing.get_context(method).Process(target=child, args=(sys.argv[1],))
        process.start()
        process.join(60)
        assert process.exitcode == 0, method
    assert client.connected
"""


def test_multiprocessing_of_every_kind(daemon: Daemon, path: Path, tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(_SPAWN)
    done = subprocess.run(
        [sys.executable, str(script), str(path)],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": _ROOT},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


_LOADER = """
import sys, torch, evac
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 32
    def __getitem__(self, index): return torch.tensor(index)
if __name__ == "__main__":
    client = evac.connect("job", socket=sys.argv[1])
    assert client.wait_connected(20)
    client.reserve(nbytes=16384, body="a.bin", slots=1)
    slot = client.acquire(20)
    for _ in range(2):
        seen = sum(int(batch.sum()) for batch in DataLoader(Numbers(), batch_size=4, num_workers=2))
        assert seen == sum(range(32))
    assert client.connected
    slot.memory[4096] = 1
"""


def test_data_loader_workers_neither_hang_nor_hold_on(
    daemon: Daemon, path: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "loads.py"
    script.write_text(_LOADER)
    done = subprocess.run(
        [sys.executable, str(script), str(path)],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": _ROOT},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    daemon.wait_until(lambda: daemon.ended == 1)
