"""How long from a notice on the wire until it is told, and until the first byte of state is safe.

The metadata services are the simulators, in this process and on loopback; the way is the
daemon's own: source, order machine, flush, local store (in EVAC_BENCH_DIR, default
/var/tmp). The body is one page, so that its first byte is not waiting behind its others. What
is polled is measured on many machines at once, each with a phase of its own. The daemons are
real processes; what they cost is read from /proc while they do nothing but listen.
"""

import asyncio
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, quantiles

from aiohttp import web
from harness import Ratio, Variant, main

from evac.commit import chunk_sums
from evac.generation import Generation
from evac.store import Owner
from evac.store.local import LocalStore
from evacd.clock import SystemClock
from evacd.facts import Candidate, Noticed, Probe, Quiet, Unit
from evacd.flush import Flush
from evacd.flush.save import Saver
from evacd.notice import Source, aws, azure, gcp
from evacd.notice.metadata import open_session
from evacd.notice.simulate.aws import AwsMetadata
from evacd.notice.simulate.azure import MACHINE, AzureMetadata
from evacd.notice.simulate.cloud import Cloud
from evacd.notice.simulate.gcp import GcpMetadata
from evacd.order import Given, Machine
from evacd.workloads import Part, TurnResult

HANGING_SAMPLES = 60
MACHINES = 16
PAUSE = 0.003
CPU_SECONDS = 4.0
BODY = mmap.PAGESIZE
CLOCK = SystemClock()
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20

RATIOS = [
    Ratio("first_byte", "first_byte_p50_ms", "gcp, hanging GET", None, 10.0, at_least=False),
    Ratio("aws_1s", "max_ms", "aws, each 1 s", None, 1010.0, at_least=False),
    Ratio("aws_0.2s", "max_ms", "aws, each 0.2 s", None, 210.0, at_least=False),
    Ratio("azure_1s", "max_ms", "azure, each 1 s", None, 1010.0, at_least=False),
    Ratio("azure_0.2s", "max_ms", "azure, each 0.2 s", None, 210.0, at_least=False),
    Ratio("idle_cpu", "cpu_percent", "evacd, idle on gcp", None, 1.0, at_least=False),
    Ratio("idle_rss", "rss_mib", "evacd, idle on gcp", None, 60.0, at_least=False),
    Ratio("polling_cpu", "cpu_percent", "evacd, aws each 1 s", None, 1.0, at_least=False),
    Ratio("polling_rss", "rss_mib", "evacd, aws each 1 s", None, 60.0, at_least=False),
]

# --- from the wire to the store ----------------------------------------------------------


class StampedStore(LocalStore):
    """Notes when the first bytes of a body are written."""

    first_byte = 0.0

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Store`."""

        def written(_: int) -> None:
            self.first_byte = self.first_byte or CLOCK.monotonic()

        await super().put(key, data, progress=written)


@dataclass
class Summed:
    """Checksums as the quiet time leaves them: there already."""

    sums: tuple[int, ...]

    async def all(self) -> tuple[int, ...]:
        """As `Sums.all`."""
        return self.sums


class Aboard:
    """One workload that has staged one page at each step."""

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self._memory = mmap.mmap(-1, BODY)
        self._memory.write(os.urandom(BODY))
        self._sums = Summed(tuple(chunk_sums(memoryview(self._memory))))
        self.step = 0
        self.fresh = False

    def stage(self) -> None:
        """The next step, not yet durable."""
        self.step, self.fresh = self.step + 1, True

    def units(self) -> tuple[Unit, ...]:
        """See `OnBoard`, as the rest."""
        candidates = (Candidate(Generation(1, self.step), BODY),) if self.fresh else ()
        return (Unit("bench/job", 0, 0.0, (self._lane,), candidates),)

    @contextmanager
    def hold(self, unit: str, generation: Generation) -> Iterator[tuple[Part, ...]]:
        """All of it, always."""
        yield (
            Part(
                unit=unit, job="job", run="", generation=generation, rank=0, world=1,
                prefix=unit, owner=Owner(os.getuid(), os.getgid()), body="part.bin",
                layout="", data=memoryview(self._memory), items=(), metadata=b"",
                sums=self._sums,  # type: ignore[arg-type]  # only `all` is asked for
            ),
        )  # fmt: skip

    def mark_durable(self, unit: str, generation: Generation, store: str) -> None:
        """Nothing is left to save."""
        self.fresh = False

    async def turn(self, unit: str, **_: object) -> TurnResult:
        """Nobody flushes by itself here."""
        raise AssertionError(f"{unit} stages")


class Told:
    """Hears a source; the daemon's way from there is in *act*."""

    def __init__(self, act: Callable[[Probe], None] = lambda _: None) -> None:
        self._act = act
        self._news = asyncio.Event()
        self.at = 0.0
        self.last: Probe | None = None

    def hear(self, probe: Probe) -> None:
        """What a source tells."""
        if isinstance(probe, Noticed) and not self.at:
            self.at = CLOCK.monotonic()
        self._act(probe)
        self.last = probe
        self._news.set()

    async def until(self, seen: Callable[[], bool]) -> None:
        """Wait for news that make *seen* true."""
        while not seen():
            self._news.clear()
            await self._news.wait()

    async def calm(self) -> None:
        """Until nothing is announced."""
        await self.until(lambda: isinstance(self.last, Quiet))
        self.at = 0.0


@asynccontextmanager
async def serving(cloud: Cloud) -> AsyncIterator[str]:
    runner = web.AppRunner(cloud.app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def hanging(folder: Path) -> Mapping[str, float]:
    """GCE's preemption by hanging GET, through machine and flush to the store."""
    lane = f"file://{folder}"
    store, aboard = StampedStore(str(folder)), Aboard(lane)
    machine = Machine(lambda: f"bench-{aboard.step}")
    flush = Flush(
        aboard, Saver(lambda _url, _owner: store, node="bench"),
        lanes=[lane], assumed=1e9, reserve=0.0, commit_seconds=0.0, clock=CLOCK,
        record=lambda _name, _data: None, ended=lambda _outcome: None, idle=lambda: None,
    )  # fmt: skip

    def act(probe: Probe) -> None:
        for transition in machine.feed(probe, now=CLOCK.monotonic()):
            if isinstance(transition, Given):
                flush.evacuate(transition.order)
            else:
                flush.stand_down()

    metadata, told = GcpMetadata(), Told(act)
    told_ms, first_ms = [], []
    async with serving(metadata) as url, open_session() as session, TaskGroup() as tasks:
        source = gcp.GcpSource(
            gcp.gcp_client(session, url), CLOCK, window_seconds=30.0, trust_true_at_boot=True
        )
        work = [tasks.create_task(flush.drive(lane)), tasks.create_task(source.watch(told.hear))]
        for _ in range(HANGING_SAMPLES):
            await told.until(lambda: told.last is not None)
            await asyncio.sleep(PAUSE)
            aboard.stage()
            told.at = store.first_byte = 0.0
            began = CLOCK.monotonic()
            metadata.preempt()
            await told.until(lambda: told.at > 0)
            await flush.settled.wait()
            told_ms.append((told.at - began) * 1e3)
            first_ms.append((store.first_byte - began) * 1e3)
            told.last = None
            metadata.clear()
        for task in work:
            task.cancel()
    if min(first_ms) <= 0:
        raise RuntimeError("a notice was told and nothing was flushed")
    return {
        "told_p50_ms": quantiles(told_ms, n=100)[49],
        "first_byte_p50_ms": quantiles(first_ms, n=100)[49],
        "first_byte_p99_ms": quantiles(first_ms, n=100)[98],
    }


# --- what is polled -----------------------------------------------------------------------


async def polled(name: str, period: float) -> Mapping[str, float]:
    """Many machines, each told once at a moment of its own."""
    async with AsyncExitStack() as opened, TaskGroup() as tasks:
        samples = [tasks.create_task(_one(name, period, opened, tasks)) for _ in range(MACHINES)]
        await asyncio.wait(samples)
    milliseconds = [sample.result() * 1e3 for sample in samples]
    return {"mean_ms": mean(milliseconds), "max_ms": max(milliseconds)}


async def _one(name: str, period: float, opened: AsyncExitStack, tasks: TaskGroup) -> float:
    cloud: Cloud = AwsMetadata() if name == "aws" else AzureMetadata()
    url = await opened.enter_async_context(serving(cloud))
    session = await opened.enter_async_context(open_session())
    source: Source
    if name == "aws":
        source = aws.sources(aws.aws_client(session, url), CLOCK, period=period)[0]
    else:
        (source,) = azure.sources(session, CLOCK, url=url, machine=MACHINE, period=period)
    told = Told()
    watch = tasks.create_task(source.watch(told.hear))
    await told.calm()
    await asyncio.sleep(period * random.random())
    began = CLOCK.monotonic()
    cloud.actions["preempt"]()
    await told.until(lambda: told.at > 0)
    watch.cancel()
    return told.at - began


# --- what listening costs ------------------------------------------------------------------


class Daemon:
    """A real evacd and the simulator that it listens to, each a process."""

    def __init__(self, folder: Path, cloud: str, period: float) -> None:
        self._cloud = subprocess.Popen(
            [sys.executable, "-m", "evacd", "simulate", cloud, "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._cloud.stdout is None:
            raise RuntimeError("no pipe")
        url = json.loads(self._cloud.stdout.readline())["url"]
        home = folder / f"{cloud}-{period:g}"
        home.mkdir()
        self._evacd = subprocess.Popen(
            [
                sys.executable, "-m", "evacd", "run", "--store", f"file://{home}/store",
                "--cloud", cloud, "--metadata-url", url, "--poll-seconds", f"{period:g}",
                "--socket", f"{home}/run/evacd.sock", "--admin-socket", f"{home}/run/admin.sock",
                "--state-dir", f"{home}/state", "--http-port", "0", "--memory-budget", "64MiB",
            ],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def cost(self) -> Mapping[str, float]:
        """While it does nothing but listen."""
        before, began = self._cpu(), time.perf_counter()
        time.sleep(CPU_SECONDS)
        spent, took = self._cpu() - before, time.perf_counter() - began
        pages = int(Path(f"/proc/{self._evacd.pid}/statm").read_text().split()[1])
        return {"cpu_percent": 100 * spent / took, "rss_mib": pages * _PAGE_MIB}

    def stop(self) -> None:
        """Both are gone."""
        for process in (self._evacd, self._cloud):
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._evacd.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def build(folder: Path, daemons: Mapping[str, Daemon]) -> Sequence[Variant]:
    def run_hanging() -> Mapping[str, float]:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            return asyncio.run(hanging(Path(name)))

    def run_polled(name: str, period: float) -> Callable[[], Mapping[str, float]]:
        return lambda: asyncio.run(polled(name, period))

    return [
        Variant("gcp, hanging GET", run_hanging),
        *(
            Variant(f"{name}, each {period:g} s", run_polled(name, period))
            for name in ("aws", "azure")
            for period in (1.0, 0.2)
        ),
        *(Variant(name, daemon.cost) for name, daemon in daemons.items()),
    ]


def run() -> int:
    """With three daemons beside it for as long as it takes."""
    base = os.environ.get("EVAC_BENCH_DIR", "/var/tmp")
    with tempfile.TemporaryDirectory(dir=base) as name, ExitStack() as ends:
        folder = Path(name)
        daemons = {
            "evacd, idle on gcp": Daemon(folder, "gcp", 1.0),
            "evacd, aws each 1 s": Daemon(folder, "aws", 1.0),
            "evacd, aws each 0.2 s": Daemon(folder, "aws", 0.2),
        }
        for daemon in daemons.values():
            ends.callback(daemon.stop)
        # They measure their store when they start; that is not listening.
        time.sleep(4)
        return main("detect", build(folder, daemons), RATIOS, rounds=3)


if __name__ == "__main__":
    sys.exit(run())
