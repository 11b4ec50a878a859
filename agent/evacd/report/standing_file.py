"""Keeps a `Standing` in a file, so that whoever reads it has a whole one: the old or the new.

Written by a thread of its own: a disk that hangs must not hold up the event loop, and a
thread that hangs must not keep the process from ending.
"""

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

import structlog

from evacd.clock import Clock
from evacd.report.standing import Standing, decode, encode

log = structlog.get_logger()

# Of a few hundred bytes; more is not ours.
_MOST_BYTES = 1 << 20
_STOP_SECONDS = 2.0
_AGAIN_SECONDS = 0.5


@dataclass(frozen=True)
class _Reached:
    """All before it in the queue is on the disk, or could not be written."""

    tell: Callable[[], None]


class StandingFile:
    """One `Standing` on the disk; the newest that was put wins."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Touch nothing yet.

        Args:
            path: In a directory that exists.
        """
        self._path = path
        self._clock = clock
        self._queue: queue.SimpleQueue[Standing | _Reached | None] = queue.SimpleQueue()
        self._failing = False
        self._writer = threading.Thread(target=self._write_all, name="standing", daemon=True)
        self._writer.start()

    def load(self) -> Standing | None:
        """What lies there; None where nothing does. Blocks for a moment.

        What cannot be read is told of, moved aside, and as if it were not there.
        """
        try:
            with self._path.open("rb") as file:
                return decode(file.read(_MOST_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            aside = self._move_aside()
            log.warning(
                "standing.unreadable", path=str(self._path), moved_to=aside, reason=str(error)
            )
            return None

    def put(self, standing: Standing) -> None:
        """Write it soon; never blocks, never raises."""
        self._queue.put(standing)

    async def written(self, *, within: float) -> None:
        """Wait until all that was put is on the disk or could not be written.

        Args:
            within: Seconds; after them the disk is waited for no longer.
        """
        loop = asyncio.get_running_loop()
        reached = asyncio.Event()

        def tell() -> None:
            # The loop may be gone by then, and with it whoever waited.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(reached.set)

        self._queue.put(_Reached(tell))
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await reached.wait()

    def stop(self) -> None:
        """Write what is left; at most 2 seconds, whatever the disk does."""
        self._queue.put(None)
        self._writer.join(_STOP_SECONDS)

    def _move_aside(self) -> str:
        stamp = self._clock.utc().astimezone(UTC).strftime("%Y%m%dT%H%M%S")
        aside = self._path.with_name(f"{self._path.name}.aside-{stamp}")
        try:
            self._path.rename(aside)
        except OSError:
            return ""
        return str(aside)

    # --- the writer's thread -------------------------------------------------------------

    def _write_all(self) -> None:
        left: Standing | None = None
        over = False
        while not over:
            batch: list[Standing | _Reached | None] = []
            with suppress(queue.Empty):
                # What failed may work by now, though nothing new comes.
                batch.append(self._queue.get(timeout=None if left is None else _AGAIN_SECONDS))
                while batch[-1] is not None:
                    batch.append(self._queue.get_nowait())
            left = ([left] + [each for each in batch if isinstance(each, Standing)])[-1]
            if left is not None and self._write(encode(left)):
                left = None
            for each in batch:
                if isinstance(each, _Reached):
                    each.tell()
            over = None in batch

    def _write(self, data: bytes) -> bool:
        beside = self._path.with_name(f"{self._path.name}.new")
        try:
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            if not self._failing:
                log.warning("standing.failed", path=str(self._path), reason=str(error))
            self._failing = True
        else:
            if self._failing:
                log.info("standing.recovered", path=str(self._path))
            self._failing = False
        return not self._failing
