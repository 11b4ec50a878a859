"""`evacd simulate`: a metadata service to rehearse against.

It says that it is one on its first line, listens on loopback unless told otherwise, and gives
its notice after a time, on SIGUSR1, or on ``POST /evac-simulator/preempt`` from this machine.
"""

import argparse
import asyncio
import json
import math
import signal
import sys
from asyncio import TaskGroup
from dataclasses import dataclass

from aiohttp import web

from evacd.notice.simulate.gcp import BANNER, PREEMPTED, GcpMetadata

CONTROL = "/evac-simulator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to *parser*."""
    parser.add_argument("cloud", choices=["gcp"], help="whose metadata service to play")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=_port, default=0, help="0 takes a free one (default)")
    parser.add_argument(
        "--preempt-after",
        type=_seconds,
        metavar="SECONDS",
        help="give the notice so long after the start; without it, wait for SIGUSR1 or "
        f"POST {CONTROL}/preempt",
    )
    parser.add_argument(
        "--notice-seconds",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="say that the machine is gone so long after the notice (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


async def serve(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, then 0; 1 where the address cannot be had."""
    report = _Report(as_json=args.json)
    stop = asyncio.Event()
    preempted = asyncio.Event()
    cleared = asyncio.Event()

    def changed(key: str, value: str) -> None:
        if key != PREEMPTED:
            return
        happened, over = (preempted, cleared) if value == "TRUE" else (cleared, preempted)
        over.clear()
        happened.set()
        if value == "TRUE":
            report.event("preempted", f"{key} is TRUE; the end is in {args.notice_seconds:g} s")
        else:
            report.event("cleared", f"{key} is FALSE again")

    metadata = GcpMetadata(changed=changed)
    runner = web.AppRunner(
        metadata.app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    loop = asyncio.get_running_loop()
    try:
        site = web.TCPSite(runner, args.host, args.port)
        try:
            await site.start()
        except OSError as error:
            sys.stderr.write(f"evacd simulate: {args.host}:{args.port}: {error.strerror}\n")
            return 1
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGUSR1, metadata.preempt)
        report.started(_url(runner))
        async with TaskGroup() as tasks:
            schedule = tasks.create_task(_later(args.preempt_after, metadata))
            end = tasks.create_task(_ends(preempted, cleared, args.notice_seconds, report))
            await stop.wait()
            schedule.cancel()
            end.cancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            loop.remove_signal_handler(number)
        await runner.cleanup()
    return 0


async def _later(seconds: float | None, metadata: GcpMetadata) -> None:
    if seconds is not None:
        await asyncio.sleep(seconds)
        metadata.preempt()


async def _ends(
    preempted: asyncio.Event, cleared: asyncio.Event, seconds: float, report: "_Report"
) -> None:
    """Say when a real machine would be gone, unless the notice is taken back before."""
    while True:
        await preempted.wait()
        try:
            async with asyncio.timeout(seconds):
                await cleared.wait()
        except TimeoutError:
            report.event("gone", "a real machine would be gone now")
            await cleared.wait()


@dataclass(frozen=True)
class _Report:
    """What is printed, a line at a time."""

    as_json: bool

    def started(self, url: str) -> None:
        if self.as_json:
            self._line(json.dumps({"url": url, "control": url + CONTROL, "what": BANNER}))
            return
        self._line(f"{BANNER}: {url}")
        self._line(f"give notice:  curl -X POST {url}{CONTROL}/preempt")
        self._line(f"take it back: curl -X POST {url}{CONTROL}/clear")

    def event(self, word: str, text: str) -> None:
        self._line(json.dumps({"event": word, "text": text}) if self.as_json else f"{word}: {text}")

    def _line(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds >= 0, not {text}")
    return seconds


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 65536:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, not {text}")
    return port


def _url(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
