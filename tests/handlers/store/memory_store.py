"""A store in a dict that fails, dawdles and tells as it is told: for what wraps stores."""

import threading
from collections.abc import Callable, Iterable, Sequence

from evac.errors import StoreError, StoreMissing
from evac.store import Entry
from evac.store.keys import split
from evac.store.threads import in_thread

PIECE = 1024 * 1024


class MemoryStore:
    """A `Store` that forgets all at the end.

    Args:
        failures: What its next calls raise instead of working, in turn; None for one that works.
            A put fails after its first piece.
    """

    def __init__(self, failures: Iterable[StoreError | None] = ()) -> None:
        self.calls: list[str] = []
        self._failures = list(failures)
        self._objects: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return "memory://"

    async def prepare(self, prefix: str) -> None:
        split(prefix)

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        split(key)
        self.calls.append("put")
        failure = self._failures.pop(0) if self._failures else None

        def work(stop: threading.Event) -> bytearray:
            made = bytearray()
            for start in range(0, data.nbytes, PIECE):
                if stop.is_set():
                    break
                made += data[start : start + PIECE]
                if progress is not None:
                    progress(len(data[start : start + PIECE]))
                if failure is not None:
                    raise failure
            return made

        # Kept by the loop: who is cancelled while the thread ends has put nothing.
        self._objects[key] = bytes(await in_thread(work))

    async def create(self, key: str, data: bytes) -> bool:
        self._call("create", key)
        if key in self._objects:
            return False
        self._objects[key] = data
        return True

    async def get(self, key: str) -> bytes:
        self._call("get", key)
        if key not in self._objects:
            raise StoreMissing(key, "no such object")
        return self._objects[key]

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        self._call("read", key)
        if key not in self._objects:
            raise StoreMissing(key, "no such object")
        found = self._objects[key][offset : offset + into.nbytes]
        into[: len(found)] = found
        return len(found)

    async def list(self, prefix: str) -> Sequence[Entry]:
        self._call("list", prefix or "all")
        found = (Entry(key, len(data)) for key, data in sorted(self._objects.items()))
        return [one for one in found if not prefix or one.key.startswith(f"{prefix}/")]

    async def delete(self, key: str) -> None:
        self._call("delete", key)
        self._objects.pop(key, None)

    async def clean(self, *, older_than: float = 60.0) -> int:
        self._call("clean", "all")
        return 0

    def _call(self, verb: str, key: str) -> None:
        split(key)
        self.calls.append(verb)
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
