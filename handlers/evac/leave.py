"""`evac leave`: have what one's own job staged on this node saved, before its processes are stopped.

Exit codes: 0 it is safe, 1 it was lost or refused, 2 wrong usage or no daemon.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from evac._settings import checked, job_of
from evac.admin import read_status, request
from evac.errors import NotConnected
from evac.human import seconds, size
from evac.wire import Ordered, Refuse, Save

_PERIOD_SECONDS = 0.1
# Longer than any grace period: what moves in overtime is followed until it ends.
_LIMIT_SECONDS = 3600.0

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
    answer = request(args.socket, message, timeout=5.0)
    if not isinstance(answer, Ordered):
        reason = answer.reason if isinstance(answer, Refuse) else f"answered {answer.type!r}"
        print(f"evac: {reason}", file=sys.stderr)
        return 1
    if not args.json:
        _say(f"{answer.unit}: order {answer.order}, {seconds(args.within)}")
    ends = time.monotonic() + args.within  # noqa: TID251 - a person waits in real time

    def ask_again() -> Ordered | None:
        """Of a daemon that was restarted, which has all slots back and knows of no order."""
        left = ends - time.monotonic()  # noqa: TID251
        again = Save(job=args.job, seconds=left) if left > 0 else None
        told = request(args.socket, again, timeout=5.0) if again is not None else None
        return told if isinstance(told, Ordered) else None

    try:
        told = wait(
            lambda: read_status(args.socket, timeout=5.0),
            answer,
            say=None if args.json else _say,
            again=ask_again,
            within=args.within,
        )
    except NotConnected as error:
        print(f"evac: evacd went away meanwhile: {error.reason}", file=sys.stderr)
        return 1
    print(json.dumps(told, indent=1) if args.json else render(told))
    return 0 if told["state"] == "kept" else 1


def wait(
    read: Callable[[], Mapping[str, Any]],
    ordered: Ordered,
    *,
    say: Callable[[str], None] | None,
    again: Callable[[], Ordered | None] = lambda: None,
    within: float = 0.0,
) -> Mapping[str, Any]:
    """What became of it, once it has settled; each change of its state is said.

    Args:
        again: Asks for it anew, where the daemon was restarted meanwhile; None where it may not.
        within: Seconds for which a daemon that is away is waited for.

    Raises:
        NotConnected: It stayed away.
    """
    began = time.monotonic()  # noqa: TID251 - a person waits in real time
    ends, patient = began + _LIMIT_SECONDS, began + within
    before = "waiting"
    while True:
        try:
            found = [one for one in read()["leaving"] if one["order"] == ordered.order]
            found = [one for one in found if one["unit"] == ordered.unit]
            if not found and (anew := again()) is not None:
                ordered = anew
                continue
        except NotConnected:
            if time.monotonic() > patient:  # noqa: TID251
                raise
            time.sleep(_PERIOD_SECONDS)
            continue
        if not found:
            reason = "evacd knows nothing of it any more; see `evac report`"
            return {"order": ordered.order, "unit": ordered.unit, "state": "lost", "reason": reason}
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
