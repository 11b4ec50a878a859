"""The client without torch, held to torch's own servers."""

import asyncio

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__

from evac.rendezvous.torch_keys import TorchKeys, connect
from evacd.rendezvous.joblog import append
from evacd.rendezvous.tcpstore import NotATcpStore, TcpStore

HOST = "127.0.0.1"


@pytest.fixture(params=[True, False], ids=["libuv", "legacy"])
def server(request: pytest.FixtureRequest) -> TCPStore:
    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False, use_libuv=request.param)


@pytest.fixture
def torchs(server: TCPStore) -> TorchKeys:
    return TorchKeys(connect(HOST, server.port, seconds=10), "evac/run")


async def test_what_it_writes_torch_reads(server: TCPStore, torchs: TorchKeys) -> None:
    store = await TcpStore.connect(HOST, server.port, "evac/run")

    assert await store.create("a", b"1") == b"1"
    assert await store.create("a", b"2") == b"1"
    assert await store.get("none") is None
    assert await store.create("none", b"not there before") == b"not there before"
    await store.flushed()
    store.close()

    assert torchs.get(["a", "none", "more"]) == [b"1", b"not there before", None]


async def test_what_torch_writes_it_reads(server: TCPStore, torchs: TorchKeys) -> None:
    assert torchs.create("a", b"1") == b"1"
    torchs.put("b", b"x" * 100_000)
    store = await TcpStore.connect(HOST, server.port, "evac/run")

    assert await store.get("a") == b"1"
    assert await store.get("b") == b"x" * 100_000
    assert await store.create("a", b"2") == b"1"
    store.close()


async def test_who_waits_in_torch_is_woken(server: TCPStore, torchs: TorchKeys) -> None:
    waiting = asyncio.create_task(asyncio.to_thread(torchs.wait, "log/0"))  # noqa: TID251 - awaited below
    store = await TcpStore.connect(HOST, server.port, "evac/run")

    await append(store, b"{}")
    await store.flushed()

    async with asyncio.timeout(60):
        await waiting
    store.close()


async def test_what_is_no_store_is_told_apart() -> None:
    done = asyncio.Event()

    async def web(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        done.set()

    async with await asyncio.start_server(web, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NotATcpStore):
            await TcpStore.connect(HOST, port, "evac/run")
        await done.wait()


async def test_an_endless_answer_is_not_kept() -> None:
    done = asyncio.Event()

    async def liar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = await reader.readexactly(10)
        writer.write(opened[6:] + (1 << 40).to_bytes(8, "little"))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        done.set()

    async with await asyncio.start_server(liar, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        store = await TcpStore.connect(HOST, port, "evac/run")
        with pytest.raises(NotATcpStore):
            await store.get("a")
        store.close()
        await done.wait()
