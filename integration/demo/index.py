"""The demo's second workload: it flushes itself when it is given its turn (callback mode)."""

import argparse
import os
import signal
from pathlib import Path

import evac


def main() -> None:
    """Hold an index in memory; write it out when told to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, required=True, help="where the index is written")
    args = parser.parse_args()
    index = os.urandom(4_000_000)

    with evac.connect(job="index", priority=10, mode="callback", need_seconds=2.0) as client:

        @client.on_turn
        def save(turn: evac.TurnBudget) -> int:
            temporary = args.into.with_suffix(".tmp")
            with temporary.open("wb") as file:
                file.write(index)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(args.into)
            return len(index)

        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main()
