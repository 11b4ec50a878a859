"""One way to measure: variants take turns in one process, and only their ratios are judged.

A bench is a file beside this one that ends in::

    if __name__ == "__main__":
        sys.exit(main("stage", variants, [Ratio("vs_memcpy", "ms_per_gb", "ours", "memcpy", 1.5, at_least=False)]))

Machines are noisy and change speed within minutes, so a figure is worth something only
beside another one of the same round: a ratio is taken per round, and its median is judged.
"""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One contender.

    Attributes:
        run: Does the work once and returns its figures, each with its unit in its name
            (``gb_per_s``, ``cpu_s_per_gb``, ``ms``). A variant that cannot run here is left
            out by the bench, not failed.
    """

    name: str
    run: Callable[[], Mapping[str, float]]


@dataclass(frozen=True)
class Ratio:
    """What a figure of one variant must be beside another's, in the same round.

    Attributes:
        figure: Name of the figure that both report.
        over: The variant whose figure is divided.
        under: The variant it is divided by; None judges *over*'s figure as it stands.
        goal: Where the median must lie: at least there, or at most where not *at_least*.
    """

    name: str
    figure: str
    over: str
    under: str | None
    goal: float
    at_least: bool = True


Figures = Mapping[str, float]
Variants = Sequence[Variant] | Callable[[int], Sequence[Variant]]


def main(
    bench: str,
    variants: Variants,
    ratios: Sequence[Ratio],
    *,
    size: int = 0,
    rounds: int = 5,
    warmup: int = 0,
    argv: Sequence[str] | None = None,
) -> int:
    """Parse the command line, run, print; 0 when it ran, whatever holds.

    Args:
        variants: The contenders, or what makes them from a size in bytes (``--size``).
        size: Default of ``--size``; what it counts is the bench's to say.
        rounds: Default of ``--rounds``.
        warmup: Rounds that are run first and not counted.
    """
    parser = argparse.ArgumentParser(prog=bench, description=sys.modules["__main__"].__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=rounds, help="(default: %(default)s)")
    parser.add_argument("--size", type=_size, default=size, help="bytes, or 512M, 2G (MiB, GiB)")
    args = parser.parse_args(argv)
    # Whoever has no more time for it ends it so; what it has started must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    made = variants(args.size) if callable(variants) else variants
    taken = _take(made, rounds=max(1, args.rounds), warmup=warmup)
    report = {
        "bench": bench,
        "machine": machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "size": args.size,
        "rounds": len(next(iter(taken.values()), [])),
        "variants": {name: _spreads(seen) for name, seen in taken.items()},
        "ratios": {r.name: judged for r in ratios if (judged := judge(r, taken)) is not None},
    }
    sys.stdout.write((json.dumps(report, indent=1) if args.json else table(report)) + "\n")
    return 0


def judge(ratio: Ratio, taken: Mapping[str, Sequence[Figures]]) -> dict[str, Any] | None:
    """The ratio over all rounds; None where one of its variants was left out."""
    if ratio.over not in taken or (ratio.under is not None and ratio.under not in taken):
        return None
    over = [figures[ratio.figure] for figures in taken[ratio.over]]
    under = [f[ratio.figure] for f in taken[ratio.under]] if ratio.under else [1.0] * len(over)
    # A figure below the clock's resolution must not stop the whole bench.
    pairs = [a / b if b else float("inf") for a, b in zip(over, under, strict=True)]
    middle = median(pairs)
    return {
        **_spread(pairs),
        "goal": ratio.goal,
        "holds": middle >= ratio.goal if ratio.at_least else middle <= ratio.goal,
        "at_least": ratio.at_least,
        "what": f"{ratio.figure}: {ratio.over}" + (f" / {ratio.under}" if ratio.under else ""),
    }


def table(report: Mapping[str, Any]) -> str:
    """The report for a person: what each variant did, then what holds."""
    rows = [("variant", "figure", "median", "min", "max", "")]
    for name, figures in report["variants"].items():
        rows += [(name, figure, *_numbers(spread), "") for figure, spread in figures.items()]
    rows.append(("", "", "", "", "", ""))
    rows.append(("ratio", "what", "median", "min", "max", "goal"))
    rows += [(name, r["what"], *_numbers(r), verdict(r)) for name, r in report["ratios"].items()]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    # Words to the left, numbers to the right.
    lines = [
        "  ".join(cell.ljust(w) if i in (0, 1, 5) else cell.rjust(w) for i, (cell, w) in pairs)
        for pairs in (list(enumerate(zip(row, widths, strict=True))) for row in rows)
    ]
    on = report["machine"]
    title = f"{report['bench']}: {report['rounds']} rounds, {report['date']}"
    host = f"{on['cpu']}, {on['cores']} cores, Linux {on['kernel']}"
    return "\n".join([title, host, "", *(line.rstrip() for line in lines)])


def verdict(ratio: Mapping[str, Any]) -> str:
    """``>= 0.95 holds`` or ``<= 0.05 MISSED``."""
    sign = ">=" if ratio["at_least"] else "<="
    return f"{sign} {ratio['goal']:g} {'holds' if ratio['holds'] else 'MISSED'}"


def machine() -> dict[str, Any]:
    """What the figures were taken on, without its name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }


def _take(variants: Sequence[Variant], *, rounds: int, warmup: int) -> dict[str, list[Figures]]:
    taken: dict[str, list[Figures]] = {variant.name: [] for variant in variants}
    for number in range(-warmup, rounds):
        # Whoever goes first finds other caches than whoever goes last: take turns at that too.
        start = number % len(variants) if variants else 0
        for variant in (*variants[start:], *variants[:start]):
            _progress(
                f"{'warm-up' if number < 0 else f'round {number + 1}/{rounds}'}: {variant.name}"
            )
            figures = variant.run()
            if number >= 0:
                taken[variant.name].append(figures)
    _progress("")
    return taken


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _spreads(seen: Sequence[Figures]) -> dict[str, dict[str, float]]:
    return {figure: _spread([figures[figure] for figures in seen]) for figure in seen[0]}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def _numbers(spread: Mapping[str, float]) -> tuple[str, str, str]:
    return (f"{spread['median']:.3g}", f"{spread['min']:.3g}", f"{spread['max']:.3g}")


def _size(text: str) -> int:
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)
