"""The memory behind the roster's slots: made and unmade off the loop, summed in the background.

Making a region touches every page, unmaking one returns them; both take seconds for a large
slot, so both happen in threads of their own.
"""

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from evacd.workloads.checksums import Summer, Sums
from evacd.workloads.job import Slot
from evacd.workloads.memory import Region, Stopped, build
from evacd.workloads.spill import spill


class Regions:
    """One region per slot, by the slot's key. For the loop's thread alone."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}
        self._sums: dict[int, Sums] = {}
        self._summer = Summer()
        # Two, so that a huge slot does not keep a small workload waiting.
        self._makers = ThreadPoolExecutor(2, "evacd-memory")
        self._closers = ThreadPoolExecutor(1, "evacd-free")
        self._making: set[Future[Region]] = set()
        self._closing: set[Future[None]] = set()
        self._stopping = threading.Event()

    def region(self, slot: Slot) -> Region:
        """The memory of a slot that was made.

        Raises:
            KeyError: It is not there yet, or was given back.
        """
        return self._regions[slot.key]

    def sums(self, slot: Slot) -> Sums | None:
        """The checksums of a complete slot."""
        return self._sums.get(slot.key)

    async def make(self, slot: Slot) -> bool:
        """Make the memory of *slot*; False where the slot was given up meanwhile.

        Raises:
            OSError: The system has no memory or no fd for it.
        """
        await self._settled()
        made = self._makers.submit(
            build, slot.nbytes, lambda: slot.condemned or self._stopping.is_set()
        )
        self._making.add(made)
        try:
            region = await asyncio.wrap_future(made)
        except Stopped:
            self._making.discard(made)
            return False
        except OSError:
            self._making.discard(made)
            raise
        self._making.discard(made)
        self._regions[slot.key] = region
        return True

    async def spill(self, slot: Slot, copy: Slot, folder: Path) -> bool:
        """Copy the memory of *slot* into a file for *copy*; False where one of them was given up.

        Raises:
            OSError: The disk does not take it.
        """
        source = self._regions[slot.key].keep()

        def stop() -> bool:
            return slot.condemned or copy.condemned or self._stopping.is_set()

        made = self._makers.submit(spill, source, folder, stop)
        self._making.add(made)
        try:
            region = await asyncio.wrap_future(made)
        except Stopped:
            return False
        finally:
            self._making.discard(made)
            self._let_go(source)
        self._regions[copy.key] = region
        return True

    def take_back(self, slot: Slot, region: Region) -> None:
        """The memory of a slot of before."""
        self._regions[slot.key] = region

    def sum(self, slot: Slot, files: Iterable[int]) -> None:
        """Begin with the checksums of what was just staged in *slot*.

        Args:
            files: Bytes of each file that its body consists of.
        """
        self.forget_sums(slot)
        region = self._regions[slot.key].keep()
        sums = self._sums[slot.key] = Sums(region, *files)
        self._summer.add(sums, finished=lambda: self._let_go(region))

    def forget_sums(self, slot: Slot) -> None:
        """The slot will be written again."""
        sums = self._sums.pop(slot.key, None)
        if sums is not None:
            sums.cancel()

    def give_back(self, slots: Iterable[Slot]) -> None:
        """Free what the roster freed."""
        for slot in slots:
            self.forget_sums(slot)
            region = self._regions.pop(slot.key, None)
            if region is not None:
                self._let_go(region)

    def close(self) -> None:
        """Give everything back; waits for what the threads have in hand."""
        self._stopping.set()
        self._summer.close()
        self._makers.shutdown(wait=True, cancel_futures=True)
        for made in self._making:
            if not made.cancelled() and made.exception() is None:
                self._let_go(made.result())
        for region in self._regions.values():
            self._let_go(region)
        self._regions.clear()
        self._closers.shutdown(wait=True)

    async def _settled(self) -> None:
        """Wait until memory that was given back really is: a new slot may need it."""
        for one in list(self._closing):
            await asyncio.wrap_future(one)

    def _let_go(self, region: Region) -> None:
        if region.let_go():
            closing = self._closers.submit(region.close)
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
