"""`evac`: what everyone but the daemon needs, with the standard library only.

Exit codes: 0 yes, 1 no (something was lost, torn or refused), 2 usage or nothing to talk to.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evac import __version__, advise, drill, export, incident, inspect, leave
from evac._clock import monotonic
from evac.admin import read_status, request
from evac.errors import EvacError, GenerationError, NotConnected
from evac.follow import follow
from evac.rendezvous import standalone
from evac.show import headline, render_status
from evac.wire import Cancel, Drain, Refuse

SOCKET = "/run/evac/evacd.sock"
ADMIN_SOCKET = "/run/evac/admin.sock"
# How far a deadline may be off before it is another one: clocks are read on both sides.
_SAME_SECONDS = 0.25
_WATCH = "to watch it: evac status"
_CURE = "Is evacd running? `systemctl status evacd`, or `evacd run --help`."

_EPILOG = """\
examples:
  evac status                      who is on board, and what is staged
  evac drain --seconds 60          leave this node now, and watch it happen
  evac drill --flush               who would be lost now; moves the bytes for real
  evac leave --job gpt --within 25 save your own job before you stop it (preStop hooks)
  evac interval --stall 0.2s --between 1h   how often to stage, and whether it pays
  evac store                       a rendezvous store for torchrun, on a machine that stays
  evac report                      the last evacuation's timeline (works with evacd dead)
  evac ls file:///mnt/ckpt         generations, and which of them are whole
  evac verify file:///mnt/ckpt     read the newest one back and check every checksum
  evac export file:///mnt/ckpt --format safetensors --to weights   hand the weights over

exit codes:
  0  all is well
  1  something was lost, is torn or was refused
  2  wrong usage, or nothing there to talk to
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except NotConnected as error:
        # Who is kept out by the socket's mode has a daemon.
        cure = "" if isinstance(error.__cause__, PermissionError) else f"\n{_CURE}"
        return _fail(f"{error}{cure}")
    except GenerationError as error:
        return _fail(str(error), code=1)
    except EvacError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="evac",
        description="See and steer what evacd saves from a machine that is about to go.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"evac {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    status = commands.add_parser("status", help="who is on board, and what is staged")
    _socket(status, "EVAC_SOCKET", SOCKET)
    _json(status)
    status.set_defaults(run=_status)

    drain = commands.add_parser(
        "drain", help="evacuate this node now", description="Give the order that a notice would."
    )
    drain.add_argument(
        "--seconds", type=float, default=60.0, help="time until the node goes (default 60)"
    )
    drain.add_argument("--reason", default="", help="goes into the report")
    drain.add_argument("--cancel", action="store_true", help="withdraw an operator's drain")
    drain.add_argument(
        "--no-wait", action="store_true", help="give the order and return, do not watch it"
    )
    _socket(drain, "EVAC_ADMIN_SOCKET", ADMIN_SOCKET)
    _json(drain)
    drain.set_defaults(run=_drain)

    rehearse = commands.add_parser(
        "drill",
        help="rehearse an evacuation; nobody is told to leave",
        description=drill.DESCRIPTION,
    )
    drill.add_arguments(rehearse)
    _socket(rehearse, "EVAC_ADMIN_SOCKET", ADMIN_SOCKET)
    _json(rehearse)
    rehearse.set_defaults(run=drill.drill)

    report = commands.add_parser(
        "report", help="the timeline of the last evacuation; works with evacd dead"
    )
    report.add_argument("--id", help="of one order; the last one by default")
    report.add_argument("--last", type=_count, default=1, help="how many (default 1)")
    report.add_argument(
        "--journal",
        type=Path,
        help="the daemon's journal (EVAC_JOURNAL; by default the one in EVAC_STATE_DIR, or the "
        f"one that the daemon on --socket names, or {incident.DEFAULT})",
    )
    _socket(report, "EVAC_SOCKET", SOCKET)
    _json(report)
    report.set_defaults(run=_report)

    goes = commands.add_parser(
        "leave",
        help="save what your own job has staged here, before you stop it",
        description=leave.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    leave.add_arguments(goes)
    _socket(goes, "EVAC_SOCKET", SOCKET)
    _json(goes)
    goes.set_defaults(run=leave.leave)

    interval = commands.add_parser(
        "interval",
        help="how often to stage, and what reclaims cost",
        description=advise.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    advise.add_arguments(interval)
    _json(interval)
    interval.set_defaults(run=advise.advise)

    serve = commands.add_parser(
        "store",
        help="serve the rendezvous store of torchrun jobs",
        description=standalone.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    standalone.add_arguments(serve)
    serve.set_defaults(run=standalone.store)

    for name, add_arguments, function, text in (
        ("ls", inspect.add_ls_arguments, inspect.ls, "generations, and which of them are whole"),
        ("verify", inspect.add_verify_arguments, inspect.verify, "read back, check every checksum"),
    ):
        command = commands.add_parser(name, help=text)
        add_arguments(command)
        command.set_defaults(run=function)

    hand_over = commands.add_parser(
        "export",
        help="write a generation, or its weights, as a directory that others read",
        description=export.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_arguments(hand_over)
    hand_over.set_defaults(run=export.export)
    return parser


def _socket(parser: argparse.ArgumentParser, variable: str, default: str) -> None:
    parser.add_argument(
        "--socket",
        type=Path,
        default=Path(os.environ.get(variable, default)),
        help=f"the daemon's socket ({variable}, default {default})",
    )


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def _status(args: argparse.Namespace) -> int:
    status = read_status(args.socket, timeout=5.0)
    print(json.dumps(status, indent=1) if args.json else render_status(status))
    return 0


def _drain(args: argparse.Namespace) -> int:
    message = Cancel() if args.cancel else Drain(seconds=args.seconds, reason=args.reason)
    asked = monotonic()
    answer = request(args.socket, message, timeout=5.0)
    if isinstance(answer, Refuse):
        return _fail(answer.reason, code=1)
    if args.cancel:
        return _withdrawn(args)
    status = read_status(args.socket, timeout=5.0)
    _say_if_sooner(status.get("order"), wanted=args.seconds - (monotonic() - asked))
    if args.no_wait:
        print(json.dumps(status, indent=1) if args.json else f"{headline(status)}; {_WATCH}")
        return 0
    try:
        return follow(lambda: read_status(args.socket, timeout=5.0), as_json=args.json)
    except KeyboardInterrupt:
        print("\nevac: the order goes on; to withdraw it: evac drain --cancel", file=sys.stderr)
        raise


def _withdrawn(args: argparse.Namespace) -> int:
    """What is left of an order, once an operator's part in it is taken back."""
    status = _daemon(args.socket) or {}
    if args.json:
        print(json.dumps(status, indent=1))
    elif status.get("order"):
        print(f"the drain is withdrawn, others' notices stand: {headline(status)}; {_WATCH}")
    else:
        print("the drain is withdrawn")
    return 0


def _say_if_sooner(order: Mapping[str, Any] | None, *, wanted: float) -> None:
    """A running order's deadline is only ever brought forward; who asked for more must know."""
    if order is None or order["seconds_left"] >= wanted - _SAME_SECONDS:
        return
    left = order["seconds_left"]
    when = f"{left:.0f} s left" if left > 0 else f"passed {-left:.0f} s ago"
    anew = "; to start anew: evac drain --cancel" if order["source"] == "operator" else ""
    print(
        f"evac: order {order['id']} ({order['source']} {order['kind']}) runs already and its "
        f"deadline stays: {when}. A deadline is only ever brought forward{anew}",
        file=sys.stderr,
    )


def _report(args: argparse.Namespace) -> int:
    status = _daemon(args.socket)
    journal = args.journal or incident.place(os.environ, status)
    incidents = incident.load(journal, last=args.last, id=args.id)
    if not incidents:
        if args.json:
            print("[]")
        which = f"of order {args.id} " if args.id else ""
        return _fail(f"{journal}: no evacuation {which}is on record", code=1)
    order = status.get("order") if status else None
    running = order["id"] if order else None
    if args.json:
        found = [incident.as_json(one, running=one.id == running) for one in incidents]
        print(json.dumps(found, indent=1))
        return 0
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = max(60, min(shutil.get_terminal_size((80, 24)).columns, 120))
    for one in incidents:
        print(incident.render(one, width=width, color=color, running=one.id == running))
    return 0


def _daemon(socket: Path) -> Mapping[str, Any] | None:
    """What a living daemon says of itself; None without one."""
    try:
        return read_status(socket, timeout=1.0)
    except EvacError:
        return None


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 1 or more")
    return int(text)


def _fail(text: str, *, code: int = 2) -> int:
    print(f"evac: {text}", file=sys.stderr)
    return code
