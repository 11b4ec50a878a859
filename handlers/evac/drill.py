"""`evac drill`: rehearse an evacuation on a live node, and show what would have become of it.

Exit codes: 0 nothing would be lost, 1 something would be (or nobody can say).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from evac.admin import read_status, request
from evac.human import seconds, size
from evac.show import table
from evac.wire import Drill, Refuse

_PERIOD_SECONDS = 0.1
# So many times as long as the last answer took, within reason, is waited before the next question.
_SHARE = 20
_LONGEST_SECONDS = 2.0
# Longer than any flush takes that is worth its name.
_LIMIT_SECONDS = 3600.0

DESCRIPTION = """\
Rehearse an evacuation: no cordon, no departure, and no workload is told to leave. Without
--flush it only plans. With --flush the newest generations go to the store for real, in the
plan's order and at full speed, while training goes on; they stay there as generations of their
jobs. The margin is what is left of the window, less the commit reserve; exit 1 if anything
would be lost.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its own; the socket and --json come from the caller."""
    parser.add_argument("--flush", action="store_true", help="move the bytes for real")
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        help="window to rehearse (default: the one that the daemon reckons with)",
    )


def drill(args: argparse.Namespace) -> int:
    """Carry it out, wait for it, print it."""
    answer = request(args.socket, Drill(seconds=args.seconds, flush=args.flush), timeout=5.0)
    if isinstance(answer, Refuse):
        print(f"evac: {answer.reason}", file=sys.stderr)
        return 1
    report = wait(lambda: read_status(args.socket, timeout=5.0))
    print(json.dumps(report, indent=1) if args.json else render(report))
    return 1 if report["lost"] or report["reason"] else 0


def wait(read: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """The report, once the drill has ended."""
    ends = time.monotonic() + _LIMIT_SECONDS  # noqa: TID251 - a person waits in real time
    while True:
        asked = time.monotonic()  # noqa: TID251
        report: Mapping[str, Any] = read()["drill"]
        took = time.monotonic() - asked  # noqa: TID251
        if not report["running"]:
            return report
        if time.monotonic() > ends:  # noqa: TID251
            return {**report, "reason": "it still runs after an hour"}
        # An answer about many workloads costs the daemon some time, which the drill needs, too.
        time.sleep(min(max(_PERIOD_SECONDS, _SHARE * took), _LONGEST_SECONDS))


def render(report: Mapping[str, Any]) -> str:
    """The report for people."""
    flushed = report["flush"]
    head = f"{report['id']}: a window of {seconds(report['window_seconds'])}"
    lines = [f"{head}, {seconds(report['reserve_seconds'])} of it kept for commits", ""]
    if report["units"]:
        rows = [_row(unit, flushed=flushed) for unit in report["units"]]
        lines += [table(("WORKLOAD", "STEP", "BYTES", "PREDICTED", "DRILLED", "VERDICT"), rows), ""]
    else:
        lines += ["nobody is on board", ""]
    margin = f"margin   predicted {_margin(report['predicted_margin_seconds'])}"
    if flushed:
        margin += f", drilled {_margin(report['drilled_margin_seconds'])}"
    lines.append(margin)
    lost = len(report["lost"])
    word = "would have been" if flushed else "would be"
    lines.append(f"{lost} of {len(report['units'])} {word} lost")
    if report["reason"]:
        lines.append(f"the drill did not end as it should: {report['reason']}")
    return "\n".join(lines)


def _row(unit: Mapping[str, Any], *, flushed: bool) -> tuple[str, ...]:
    lost = unit["drilled_lost"] if flushed else unit["predicted_lost"]
    verdict = f"LOST: {unit['reason']}" if lost else "safe"
    if not lost and flushed and unit["reason"]:
        verdict += f"; {unit['reason']}"
    return (
        unit["unit"],
        "-" if unit["step"] is None else str(unit["step"]),
        size(unit["nbytes"]),
        _margin(unit["predicted_margin_seconds"]),
        _margin(unit["drilled_margin_seconds"]),
        verdict,
    )


def _margin(value: float | None) -> str:
    if value is None:
        return "-"
    return f"+{seconds(value)}" if value >= 0 else seconds(value)
