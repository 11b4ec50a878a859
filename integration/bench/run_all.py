"""Run every bench in this folder and write RESULTS.md and RESULTS.json beside them.

Named benches are run and shown, and nothing is written.

Each bench runs alone, in a process of its own. A bench that breaks is named in the table
and makes this exit 1; one whose goal is missed does not.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import verdict

HERE = Path(__file__).parent
NO_BENCH = {"harness", "run_all"}


def main() -> int:
    """Run them all, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="names of benches (default: all)")
    parser.add_argument("--rounds", type=int, help="instead of each bench's own number")
    args = parser.parse_args()
    found = sorted(path for path in HERE.glob("*.py") if path.stem not in NO_BENCH)
    benches = [path for path in found if not args.only or path.stem in args.only]
    reports: list[dict[str, Any]] = []
    broken: list[str] = []
    for path in benches:
        sys.stderr.write(f"{path.stem} ...\n")
        command = [sys.executable, str(path), "--json"]
        command += ["--rounds", str(args.rounds)] if args.rounds else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        try:
            reports.append(json.loads(done.stdout))
        except ValueError:
            broken.append(path.stem)
    text = markdown(reports, broken)
    if not args.only:
        (HERE / "RESULTS.md").write_text(text)
        (HERE / "RESULTS.json").write_text(json.dumps(reports, indent=1) + "\n")
    sys.stdout.write(text)
    return 1 if broken else 0


def markdown(reports: Sequence[Mapping[str, Any]], broken: Sequence[str]) -> str:
    """What README quotes: goals first, then all figures."""
    lines = ["# Measured", ""]
    if reports:
        on = reports[0]["machine"]
        lines += [
            f"{reports[0]['date'][:10]}, {on['cpu']}, {on['cores']} cores, {on['memory_gib']} GiB, "
            f"Linux {on['kernel']}, Python {on['python']}. "
            "Variants take turns in one process; a ratio is taken per round and its median is judged. "
            "Made by `make bench`.",
            "",
        ]
    lines += ["| bench | ratio | median | min | max | goal |", "|---|---|---|---|---|---|"]
    for report in reports:
        for ratio in report["ratios"].values():
            lines.append(
                f"| `{report['bench']}` | {ratio['what']} | **{ratio['median']:.3g}** "
                f"| {ratio['min']:.3g} | {ratio['max']:.3g} | {verdict(ratio)} |"
            )
    lines += [f"| `{name}` | did not run | | | | |" for name in broken]
    for report in reports:
        lines += ["", f"## {report['bench']} ({report['rounds']} rounds)", ""]
        lines += ["| variant | figure | median | min | max |", "|---|---|---|---|---|"]
        for name, figures in report["variants"].items():
            for figure, spread in figures.items():
                lines.append(
                    f"| {name} | `{figure}` | {spread['median']:.3g} | {spread['min']:.3g} "
                    f"| {spread['max']:.3g} |"
                )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
