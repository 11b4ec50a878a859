"""Memory for what other nodes put here: warm blocks that go from one generation to the next.

A page that is touched for the first time costs more than the copy into it, so blocks that are free
again are kept warm: a job's next generation is as large as its last. A block is a whole part of
a body (16 MiB); returning one to the system takes a millisecond or two.
"""

import errno
import mmap
import os
from collections.abc import Callable
from threading import Lock

from evac.store.peer_wire import PART
from evacd.workloads.memory import warm

# Below this a mapping of its own would be mostly overhead.
_SMALL = 64 * 1024


class Block:
    """Writable bytes."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self.view = memoryview(memory)

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.view.nbytes

    def free(self) -> None:
        """Give its pages back."""
        self.view.release()
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()


class Blocks:
    """Makes blocks, and keeps whole ones that are free for the next body. Any thread may use it.

    Args:
        room: Bytes that may still be taken from the system now.
    """

    def __init__(self, room: Callable[[], int]) -> None:
        self._room = room
        self._lock = Lock()
        self._spare: list[Block] = []
        self._unwanted: list[Block] = []

    @property
    def spare_nbytes(self) -> int:
        """Free, and warm."""
        return len(self._spare) * PART

    def lacks(self, nbytes: int) -> bool:
        """Whether so much cannot be had now, what is spare included."""
        return self._room() + self.spare_nbytes < nbytes

    def take(self, nbytes: int, stop: Callable[[], bool]) -> Block:
        """A warm block. Blocks for about 0.01 s where it has to be made.

        Raises:
            OSError: ENOMEM: the system's memory is others'.
            Stopped: *stop* became true meanwhile.
        """
        if nbytes < _SMALL:
            return Block(bytearray(nbytes))
        with self._lock:
            if self._spare:
                spare = self._spare.pop()
                if nbytes == PART:
                    return spare
                # What is held and what is spare stay within the budget together.
                spare.free()
        if self._room() < nbytes:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        memory = mmap.mmap(-1, nbytes)
        try:
            warm(memory, stop, by_hand=lambda offset, length: _touch(memory, offset, length))
        except BaseException:
            memory.close()
            raise
        return Block(memory)

    def give(self, block: Block, *, keep: bool) -> None:
        """Nobody uses it any more. Takes no time.

        Args:
            keep: There is room for it within the budget.
        """
        with self._lock:
            (self._spare if keep and block.nbytes == PART else self._unwanted).append(block)

    def trim(self) -> int:
        """Want nothing that is spare any more; how many bytes that are."""
        with self._lock:
            spare, self._spare = self._spare, []
            self._unwanted += spare
        return len(spare) * PART

    def reap(self) -> None:
        """Give back what nobody wants: 0.1 s per GiB, so under no lock and not on the event loop."""
        while True:
            with self._lock:
                if not self._unwanted:
                    return
                block = self._unwanted.pop()
            block.free()


def _touch(memory: mmap.mmap, offset: int, nbytes: int) -> None:
    for page in range(offset, offset + nbytes, mmap.PAGESIZE):
        memory[page] = 0
