"""A notice that somebody writes into a file: a calendar, a cron job, an event bus's relay.

No file is no notice, and taking it away takes its notices back; so whoever replaces it writes
aside and renames. Whoever can write it can empty this node, and whoever can remove it can call
that off: a file or folder in the wrong hands is not believed (`evacd.trust`).
"""

import os
import random
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from evacd.apart import apart
from evacd.clock import Clock
from evacd.facts import Probe, Unknown
from evacd.notice.polled import Polled
from evacd.notice.user.heard import EMPTY, Heard
from evacd.notice.user.schema import MOST_BYTES
from evacd.notice.when import Sight
from evacd.trust import Doubt, doubt_of_found, doubt_of_path


class FileSource:
    """Reads one file for ever."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        period: float = 1.0,
        name: str = "file",
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it reads nothing yet.

        Args:
            path: On a local file system: a read that hangs would hang this source.
            period: Seconds between two reads.
            name: The source's; notices carry it.
            jitter: Uniform in [0, 1), for the back-off.
        """
        self._path = path
        self._clock = clock
        self._name = name
        self._heard = Heard(name)
        self._polled = Polled(self._ask, period=period, clock=clock, jitter=jitter)

    @property
    def name(self) -> str:
        """See `Source`."""
        return self._name

    @property
    def patience(self) -> float:
        """See `evacd.notice.patience_of`."""
        return self._polled.patience

    async def probe(self) -> Probe:
        """See `Source`."""
        return await self._polled.probe()

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`."""
        await self._polled.watch(tell)

    async def _ask(self) -> tuple[Probe, ...]:
        try:
            raw = await apart(partial(_read, self._path))
        except FileNotFoundError:
            raw = EMPTY
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            return (Unknown(self._name, f"{self._path}: {why}", "can evacd's user read it?"),)
        if isinstance(raw, Doubt):
            return (Unknown(self._name, f"{self._path}: {raw.reason}", raw.cure),)
        return self._heard.hear(raw, Sight(self._clock.monotonic(), self._clock.utc()))


def _read(path: Path) -> bytes | Doubt:
    """The file's content, a byte more than is allowed at the most; or why it is not believed.

    Raises:
        OSError: It cannot be read; FileNotFoundError where its folder is there without it.
    """
    try:
        os.stat(path.parent)
    except FileNotFoundError:
        # A mount that went away takes no notice back.
        return Doubt("its folder does not exist", f"mkdir {path.parent}")
    if doubt := doubt_of_path(path):
        return doubt
    # Not to block on a FIFO that nobody writes.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return Doubt("it is no regular file", "write a file, aside, and rename it")
        # Again: it may have been replaced since.
        if doubt := doubt_of_found(str(path), found):
            return doubt
        with os.fdopen(os.dup(file), "rb") as reader:
            return reader.read(MOST_BYTES + 1)
    finally:
        os.close(file)
