"""evacd as it is, but for a wall clock that whoever tests may step: ``stepped.py FILE [flags of evacd run]``.

The file holds by how many seconds the clock is ahead of the machine's. All that asks for the time of day in the
daemon asks its `Clock`, so this is the one place to step it; the machine's own clock is everybody's.
"""

import asyncio
import sys
from argparse import ArgumentParser
from datetime import datetime, timedelta
from pathlib import Path

from evacd import logs
from evacd.clock import SystemClock
from evacd.config import flags, load
from evacd.daemon import Daemon


class Stepped(SystemClock):
    """The machine's clocks, of which one is wrong."""

    def __init__(self, ahead: Path) -> None:
        self._ahead = ahead

    def utc(self) -> datetime:
        return super().utc() + timedelta(seconds=float(self._ahead.read_text()))


def main() -> None:
    """Run until told to stop."""
    parser = ArgumentParser()
    flags.add_arguments(parser)
    config = load(None, {}, flags.given(parser.parse_args(sys.argv[2:])))
    logs.configure(config.log)
    asyncio.run(Daemon(config, Stepped(Path(sys.argv[1]))).run())


if __name__ == "__main__":
    main()
