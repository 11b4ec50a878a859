"""A client of torch's TCPStore without torch, whose import costs seconds and 200 MB.

The protocol between its client and its server is torch's own, and published nowhere: what is here
was read from torch/csrc/distributed/c10d/TCPStoreBackend.hpp and TCPStore.cpp of 2.9, 2.13 and 2.14
(2026-11), and a test holds it to the torch that is installed. Both of its servers, libuv's and the
older one, understand it. Numbers travel in the machine's own byte order; every key begins with "/".
"""

import asyncio
import os
import struct
from asyncio import StreamReader, StreamWriter

_VALIDATE, _SET, _COMPARE_SET, _PING = 0, 1, 2, 13
_MAGIC = 0x3C85F7CE
_ABSENT = b"\0absent"
# A job of ten thousand nodes has a snapshot of some 2 MB; nobody may make the daemon keep more.
_MOST_BYTES = 8 << 20


class NotATcpStore(ConnectionError):
    """What answers there is something else."""


class TcpStore:
    """One connection; see `joblog.Keys`. Its caller sets the time limit."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, prefix: str) -> None:
        self._reader = reader
        self._writer = writer
        self._prefix = prefix

    @classmethod
    async def connect(cls, host: str, port: int, prefix: str) -> "TcpStore":
        """Connect, and make sure that it is one.

        Raises:
            OSError: Nobody is there, or somebody else.
        """
        reader, writer = await asyncio.open_connection(host, port)
        store = cls(reader, writer, prefix)
        try:
            nonce = os.getpid() & 0x7FFFFFFF
            await store._send(
                struct.pack("=BI", _VALIDATE, _MAGIC), struct.pack("=BI", _PING, nonce)
            )
            if struct.unpack("=I", await store._read(4))[0] != nonce:
                raise NotATcpStore("it is no TCPStore of torch")
        except BaseException:
            store.close()
            raise
        return store

    async def get(self, key: str) -> bytes | None:
        """See `joblog.Keys.get`."""
        # A plain get of what is not there, or not any more, would wait for it. Where a key is not
        # there, a compare-and-set that expects something answers with just that.
        absent = _sized(_ABSENT)
        await self._send(struct.pack("=B", _COMPARE_SET), self._key(key), absent, absent)
        found = await self._value()
        return None if found == _ABSENT else found

    async def create(self, key: str, value: bytes) -> bytes:
        """See `joblog.Keys.create`."""
        name = self._key(key)
        await self._send(struct.pack("=B", _COMPARE_SET), name, _sized(b""), _sized(value))
        found = await self._value()
        if found == value:
            # The older server wakes who waits for a key only when it is set.
            await self._send(struct.pack("=B", _SET), name, _sized(value))
        return found

    def close(self) -> None:
        """Hang up at once; see `flushed`."""
        self._writer.transport.abort()

    async def flushed(self) -> None:
        """Wait until the store has read all that was sent: it answers in order."""
        await self._send(struct.pack("=BI", _PING, 1))
        await self._read(4)

    def _key(self, key: str) -> bytes:
        return _sized(f"/{self._prefix}/{key}".encode())

    async def _send(self, *parts: bytes) -> None:
        self._writer.write(b"".join(parts))
        await self._writer.drain()

    async def _value(self) -> bytes:
        (size,) = struct.unpack("=Q", await self._read(8))
        if size > _MOST_BYTES:
            raise NotATcpStore(f"an answer of {size} bytes")
        return await self._read(size)

    async def _read(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("it closed the connection") from error


def _sized(value: bytes) -> bytes:
    return struct.pack("=Q", len(value)) + value
