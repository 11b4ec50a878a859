"""`evac interval`: how often to stage, and what reclaims cost a job, before it is started."""

import argparse
import json
import re

from evac.errors import ConfigError
from evac.human import seconds as spoken
from evac.interval import Costs, Interval, best, bounded, shares, verdict

DESCRIPTION = """\
How often should this job stage, and does it pay to run it on machines that are taken away?
Gives the interval that costs least, T = C + sqrt(2 (M + R) C + C^2), and where the time goes.
"""

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)\s*")
_BAR = 40
# Around the best interval, to show how flat the curve is there.
_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


def duration(text: str) -> float:
    """Seconds in ``90``, ``0.2s``, ``5m``, ``1.5h`` or ``2d``.

    Raises:
        argparse.ArgumentTypeError: It is no duration.
    """
    found = _TIME.fullmatch(text)
    if not found or found[2] not in _UNITS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a duration as 90, 0.2s, 5m, 1.5h or 2d"
        )
    return float(found[1]) * _UNITS[found[2]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "--stall",
        type=duration,
        required=True,
        metavar="C",
        help="how long training waits for one stage (Checkpointer.stats.last_stall_seconds)",
    )
    parser.add_argument(
        "--restart",
        type=duration,
        default=300.0,
        metavar="R",
        help="from a reclaim until training goes on (default 5m)",
    )
    parser.add_argument(
        "--between",
        type=duration,
        required=True,
        metavar="M",
        help="mean time between two reclaims of any of the job's machines",
    )
    parser.add_argument(
        "--share",
        type=float,
        default=0.01,
        help="most of the time that stalls may take, a part of 1 (default 0.01)",
    )


def advise(args: argparse.Namespace) -> int:
    """Print the advice; 1 where the job would be a net consumer.

    Raises:
        ConfigError: A share or a time that none can be.
    """
    if not 0 < args.share <= 1:
        raise ConfigError("--share", f"{args.share:g}", "a part of 1 above 0")
    if not args.between:
        raise ConfigError("--between", "0", "more than 0")
    costs = Costs(args.stall, args.restart, args.between)
    interval = Interval(costs, bounded(costs, share=args.share), args.share)
    document = interval.document()
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        print(_page(costs, interval.every, share=args.share))
    return 1 if document["net_consumer"] else 0


def _page(costs: Costs, interval: float, *, share: float) -> str:
    held = best(costs) < interval
    why = f", so that stalls take no more than {100 * share:g} % of the time" if held else ""
    lines = [
        f"stage every {spoken(interval)}{why}",
        "",
        f"  {'every':>12}  {'stalls':>7}  {'redone':>7}  {'restarts':>8}  {'training':>8}",
    ]
    for factor in _FACTORS:
        every = interval * factor
        row = shares(costs, every)
        bar = "█" * round(_BAR * max(row.useful, 0.0))
        mark = "→" if factor == 1.0 else " "
        lines.append(
            f"{mark} {spoken(every):>12}  {_percent(row.stalls)}  {_percent(row.redone)}"
            f"  {_percent(row.restarts):>8}  {_percent(max(row.useful, 0.0)):>8}  {bar}".rstrip()
        )
    said = verdict(costs, interval, share=share)
    return "\n".join([*lines, "", f"{said[0].upper()}{said[1:]}."])


def _percent(part: float) -> str:
    return f"{100 * part:5.1f} %"
