"""A store that tells of each call before it is made: an honest wrapper, not a fake."""

from collections.abc import Callable, Sequence

from evac.store import Entry, Store


class Watched:
    """A `Store` around a store.

    Args:
        before: Told the method's name and the key before each call; what it raises is what the call does.
    """

    def __init__(self, store: Store, before: Callable[[str, str], None]) -> None:
        self._store = store
        self._before = before

    @property
    def url(self) -> str:
        return self._store.url

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        self._before("put", key)
        await self._store.put(key, data, progress=progress)

    async def create(self, key: str, data: bytes) -> bool:
        self._before("create", key)
        return await self._store.create(key, data)

    async def get(self, key: str) -> bytes:
        self._before("get", key)
        return await self._store.get(key)

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        self._before("read", key)
        return await self._store.read(key, offset, into)

    async def list(self, prefix: str) -> Sequence[Entry]:
        self._before("list", prefix)
        return await self._store.list(prefix)

    async def delete(self, key: str) -> None:
        self._before("delete", key)
        await self._store.delete(key)

    async def prepare(self, prefix: str) -> None:
        self._before("prepare", prefix)
        await self._store.prepare(prefix)

    async def clean(self, *, older_than: float = 60.0) -> int:
        self._before("clean", "")
        return await self._store.clean(older_than=older_than)
