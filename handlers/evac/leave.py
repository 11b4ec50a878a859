"""`evac leave`: have what one's own job staged on this node saved, before its processes are stopped.

Exit codes: 0 it is safe, 1 it was lost or refused, 2 wrong usage or no daemon.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evac._settings import checked, job_of
from evac.admin import read_status, request
from evac.errors import NotConnected
from evac.human import seconds, size
from evac.wire import Ordered, Refuse, Save

_PERIOD_SECONDS = 0.1
# Longer than any grace period: what moves in overtime is followed until it ends.
_LIMIT_SECONDS = 3600.0
# As the daemon has it.
_COME_BACK_SECONDS = 60.0
_FORGOTTEN = "evacd knows nothing of it any more; see `evac report`"

DESCRIPTION = """\
Save all that a job has staged on this node within so many seconds, and wait for it. Nobody else is
told or disturbed, and the node stays open. For whoever is about to stop the job's processes: a
preStop hook, a launcher. Run it as the job's own user; the job need not answer, or even live.

  lifecycle:
    preStop:
      exec: {command: [evac, leave, --within, "25"]}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its own; the socket and --json come from the caller."""
    parser.add_argument(
        "--job",
        default=job_of(os.environ),
        help="its name (EVAC_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_NAME)",
    )
    parser.add_argument(
        "--within",
        type=float,
        default=25.0,
        metavar="SECONDS",
        help="until its processes are stopped (default 25: Kubernetes grants 30)",
    )


def leave(args: argparse.Namespace) -> int:
    """Ask for it, follow it, say what became of it."""
    if args.job is None:
        print("evac: which job? Give --job, or set EVAC_JOB", file=sys.stderr)
        return 2
    try:
        message = Save(job=args.job, seconds=args.within)
        checked(message)
    except ValueError as error:
        print(f"evac: {error}", file=sys.stderr)
        return 2
    say = None if args.json else _say
    ends = time.monotonic() + args.within  # noqa: TID251 - a person waits in real time

    def ask() -> Ordered | str:
        """The order, or why there is none."""
        left = max(0.0, ends - time.monotonic())  # noqa: TID251
        told = request(args.socket, Save(job=args.job, seconds=left), timeout=5.0)
        if isinstance(told, Ordered):
            return told
        return told.reason if isinstance(told, Refuse) else f"it was answered with {told.type!r}"

    answer = _asked(ask, args.socket, ends=ends, say=say)
    if isinstance(answer, str):
        print(f"evac: {answer}", file=sys.stderr)
        return 1
    if say is not None:
        say(f"{answer.unit}: order {answer.order}, {seconds(args.within)}")
    try:
        told = wait(
            lambda: read_status(args.socket, timeout=5.0),
            answer,
            say=say,
            again=ask,
            within=max(0.0, ends - time.monotonic()),  # noqa: TID251 - as above
        )
    except NotConnected as error:
        print(f"evac: evacd went away meanwhile: {error.reason}", file=sys.stderr)
        return 1
    print(json.dumps(told, indent=1) if args.json else render(told))
    return 0 if told["state"] == "kept" else 1


def _asked(
    ask: Callable[[], Ordered | str],
    socket: Path,
    *,
    ends: float,
    say: Callable[[str], None] | None,
) -> Ordered | str:
    """What is answered; a daemon that is being restarted is waited for.

    Raises:
        NotConnected: There is none, or it stays away until *ends*.
    """
    while True:
        try:
            return ask()
        except NotConnected as error:
            late = time.monotonic() > ends  # noqa: TID251 - a person waits in real time
            if late or not may_come_back(error, socket):
                raise
            if say is not None:
                say(f"evac: waiting for evacd: {error.reason}")
                say = None
            time.sleep(_PERIOD_SECONDS)


def may_come_back(error: NotConnected, socket: Path) -> bool:
    """Whether a daemon that cannot be asked may be on its way: here was one, and it kept nobody out."""
    # It leaves its lock behind, until the next boot.
    lock = socket.with_name(f".{socket.name}.lock")
    return not isinstance(error.__cause__, PermissionError) and os.path.exists(lock)


def wait(
    read: Callable[[], Mapping[str, Any]],
    ordered: Ordered,
    *,
    say: Callable[[str], None] | None,
    again: Callable[[], Ordered | str] = lambda: _FORGOTTEN,
    within: float = 0.0,
) -> Mapping[str, Any]:
    """What became of it, once it has settled; each change of its state is said.

    Args:
        again: Asks for it anew, where the daemon knows nothing of it; why not, where it may not.
        within: Seconds for which a daemon that is away, or that refuses to begin anew, is waited for.

    Raises:
        NotConnected: It stayed away.
    """
    began = time.monotonic()  # noqa: TID251 - a person waits in real time
    ends, patient = began + _LIMIT_SECONDS, began + within
    before = "waiting"
    refused: float | None = None
    while True:
        try:
            found = [one for one in read()["leaving"] if one["order"] == ordered.order]
            found = [one for one in found if one["unit"] == ordered.unit]
            anew = again() if not found else ordered
        except NotConnected:
            if time.monotonic() > patient:  # noqa: TID251
                raise
            time.sleep(_PERIOD_SECONDS)
            continue
        if isinstance(anew, str):
            # Its processes may be on their way back to a daemon that was started again.
            now = time.monotonic()  # noqa: TID251
            refused = now if refused is None else refused
            if now <= min(patient, refused + _COME_BACK_SECONDS):
                time.sleep(_PERIOD_SECONDS)
                continue
            return {"order": ordered.order, "unit": ordered.unit, "state": "lost", "reason": anew}
        if not found:
            ordered = anew
            continue
        one: Mapping[str, Any] = found[0]
        if one["settled"] or time.monotonic() > ends:  # noqa: TID251
            return one
        if say is not None and one["state"] != before:
            before = one["state"]
            say(f"{ordered.unit}: {before}, {_left(one['seconds_left'])}")
        time.sleep(_PERIOD_SECONDS)


def render(told: Mapping[str, Any]) -> str:
    """One line for people."""
    if told["state"] != "kept":
        return f"LOST   {told['unit']}: {told['reason'] or told['state']}"
    generation = told["generation"]
    what = f"step {generation['step']}" if generation else "its own flush"
    if told["nbytes"]:
        what += f", {size(told['nbytes'])} in {seconds(told['seconds'])}"
    elif generation:
        what += " was durable already"
    part = "" if told["durable"] else "; other nodes' ranks are still missing"
    return f"saved  {told['unit']}: {what}{part}"


def _left(left: float) -> str:
    return f"{seconds(left)} left" if left >= 0 else f"{seconds(-left)} late"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
