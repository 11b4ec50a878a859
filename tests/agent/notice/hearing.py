"""What the tests of notice sources share: an ear, and servers that misbehave to the byte."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aiohttp import web

from evacd.facts import Probe
from evacd.notice import Source

# Generous: it only ends a test that would otherwise hang.
LIMIT = 60.0


@dataclass
class MovedClock:
    """A clock that stands where the test put it."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


@dataclass
class Hearing:
    """All that a source told, in order."""

    told: list[Probe] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, probe: Probe) -> None:
        self.told.append(probe)
        self._news.set()

    async def until(self, wanted: type[Probe], *, after: int = 0) -> int:
        """Wait for a probe of this type at position *after* or later; its position."""
        async with asyncio.timeout(LIMIT):
            while True:
                for position in range(after, len(self.told)):
                    if isinstance(self.told[position], wanted):
                        return position
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def watching(source: Source) -> AsyncIterator[Hearing]:
    """The source's watch, until the block ends."""
    hearing = Hearing()
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(source.watch(hearing.tell))
        yield hearing
        watch.cancel()


Wrong = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


@dataclass
class Asked:
    """A simulator's fault hook that counts what it is asked, and may answer wrongly.

    Attributes:
        wrong_plain: Answers plain reads where it is set.
        wrong_hanging: Answers hanging GETs where it is set.
    """

    wrong_plain: Wrong | None = None
    wrong_hanging: Wrong | None = None
    plain: int = 0
    hanging: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        if "wait_for_change" in request.query:
            self.hanging += 1
            wrong = self.wrong_hanging
        else:
            self.plain += 1
            wrong = self.wrong_plain
        self._news.set()
        return await wrong(request) if wrong else None

    async def until(self, *, plain: int = 0, hanging: int = 0) -> None:
        """Wait until so many requests of each kind came."""
        async with asyncio.timeout(LIMIT):
            while self.plain < plain or self.hanging < hanging:
                self._news.clear()
                await self._news.wait()


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(talk: Talk) -> AsyncIterator[str]:
    """A TCP server on loopback that says to each request whatever *talk* says; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def saying(raw: bytes) -> Talk:
    """Answer with *raw* and close."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return talk


async def resetting(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer half a header and reset the connection."""
    writer.write(b"HTTP/1.1 200 OK\r\nConte")
    await writer.drain()
    writer.transport.abort()


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Never answer; ends when the client hangs up."""
    await reader.read()


async def dripping(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte now and then, for ever."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


def http(
    body: bytes,
    *,
    status: str = "200 OK",
    kind: str = "text/plain",
    length: int | None = None,
    headers: str = "Metadata-Flavor: Google\r\nETag: 7\r\n",
) -> bytes:
    """One raw answer."""
    length = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{headers}\r\n"
    return head.encode() + body
