"""`evacd simulate`: a metadata service to rehearse against.

It says that it is one on its first line and in a header of each answer, listens on loopback
unless told otherwise, and gives its notice after a time, on SIGUSR1, on
``POST /evac-simulator/preempt`` from this machine, or as a scenario says.
"""

import argparse
import asyncio
import ipaddress
import math
import signal
import sys
from asyncio import TaskGroup
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from aiohttp import web

from evac.errors import ConfigError
from evacd.clock import SystemClock
from evacd.notice.simulate import scenario
from evacd.notice.simulate.cloud import CONTROL, Cloud, offer
from evacd.notice.simulate.faults import GRAMMAR, KINDS, Fault, Faults, parse
from evacd.notice.simulate.report import Report

_MODULES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "gcp": ("evacd.notice.simulate.gcp", "GcpMetadata"),
        "aws": ("evacd.notice.simulate.aws", "AwsMetadata"),
        "azure": ("evacd.notice.simulate.azure", "AzureMetadata"),
    }
)
# From the notice to the end of a spot machine.
_NOTICE_SECONDS: Mapping[str, float] = MappingProxyType({"gcp": 30.0, "aws": 120.0, "azure": 30.0})
# After which of the actions a real machine would be gone, and which take that back.
_ENDS = {"preempt", "terminate", "stop", "hibernate"}
_TAKES_BACK = {"clear", "cancel"}


def clouds() -> tuple[str, ...]:
    """Whose metadata service can be played here."""
    return tuple(name for name, (module, _) in _MODULES.items() if find_spec(module))


def make(name: str) -> Cloud:
    """One of `clouds`, as a machine without a notice has it."""
    module, made = _MODULES[name]
    cloud: Cloud = getattr(import_module(module), made)()
    return cloud


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to *parser*."""
    parser.add_argument("cloud", choices=clouds(), help="whose metadata service to play")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--listen-anywhere",
        action="store_true",
        help="allow a --host that is not loopback: other machines may take this for real",
    )
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
        metavar="SECONDS",
        help="say that the machine is gone so long after the notice (30; aws: 120)",
    )
    parser.add_argument(
        "--fault",
        type=_fault,
        action="append",
        default=[],
        metavar="FAULT",
        help=f"something to do wrong, may be repeated: {GRAMMAR}; kinds: {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--scenario",
        type=Path,
        metavar="FILE",
        help="TOML timeline of actions and faults: [[at]] seconds = 5, action = 'preempt'",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


async def serve(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 1 where the address cannot be had, 2 for wrong usage."""
    cloud = make(args.cloud)
    try:
        _check_host(args.host, anywhere=args.listen_anywhere)
        plot = await _scenario(args.scenario, cloud)
    except ConfigError as error:
        sys.stderr.write(f"evacd simulate: {error}\n")
        return 2
    clock, stop = SystemClock(), asyncio.Event()
    seconds: float = args.notice_seconds
    if args.notice_seconds is None:
        seconds = _NOTICE_SECONDS[args.cloud]
    report = Report(as_json=args.json, ends=_ENDS, takes_back=_TAKES_BACK)

    def act(action: str) -> None:
        cloud.actions[action]()
        report.acted(action, seconds)

    faults = Faults(args.fault, echo=getattr(cloud, "echo", {}), clock=clock)
    offer(cloud, faults, act=act, name=args.cloud)
    runner = web.AppRunner(
        cloud.app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0
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
        loop.add_signal_handler(signal.SIGUSR1, act, "preempt")
        report.started(_url(runner), cloud=args.cloud, actions=sorted(cloud.actions))
        async with TaskGroup() as tasks:
            beside = [
                tasks.create_task(scenario.play(plot, faults, act=act, clock=clock)),
                tasks.create_task(report.ends_come(seconds)),
            ]
            if args.preempt_after is not None:
                early = scenario.Scenario((scenario.Step(args.preempt_after, "preempt"),))
                beside.append(tasks.create_task(scenario.play(early, faults, act=act, clock=clock)))
            await stop.wait()
            for task in beside:
                task.cancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            loop.remove_signal_handler(number)
        await runner.cleanup()
    return 0


def _check_host(host: str, *, anywhere: bool) -> None:
    try:
        here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = False
    if not here and not anywhere:
        raise ConfigError(
            "--host",
            host,
            "a loopback address, or --listen-anywhere beside it: other machines could take "
            "this for their metadata service",
        )


async def _scenario(path: Path | None, cloud: Cloud) -> scenario.Scenario:
    if path is None:
        return scenario.Scenario()
    try:
        text = await asyncio.to_thread(path.read_text)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError("--scenario", str(path), f"a file that can be read: {why}") from error
    return scenario.read(text, where=str(path), actions=cloud.actions)


def _fault(text: str) -> Fault:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


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
