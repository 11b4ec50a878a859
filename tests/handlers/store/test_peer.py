"""`PeerStore` on a real peer: the server that evacd runs, in threads of this process."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from evac.errors import ConfigError, StoreMissing, StoreRejected, StoreUnavailable
from evac.store import Store, is_durable, open_store
from evac.store.location import parse
from evac.store.peer import OPTIONS, PeerLeaving, PeerStore
from evac.store.peer_known import MOST, KnownPeers
from evac.store.peer_links import PATIENT, WAITS_SECONDS, PeerGone
from evac.store.retry import Retry
from evacd.clock import SystemClock
from evacd.peer import PeerServer, PeerSettings
from tests.handlers.store.asking import failures
from tests.handlers.store.conftest import fresh
from tests.handlers.store.contract import MIB, StoreContract

TOKEN = b"a token that nobody would guess"
SETTINGS = PeerSettings("127.0.0.1", 0, TOKEN, 1024 * MIB, 3600.0, 16)


@contextmanager
def running(settings: PeerSettings = SETTINGS, *, leaving: bool = False) -> Iterator[PeerServer]:
    server = PeerServer(settings, SystemClock(), leaving=lambda: leaving, promised=lambda: 0)
    server.open()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("peer") / "token"
    path.write_bytes(TOKEN + b"\n")
    return path


@pytest.fixture(scope="module")
def peer() -> Iterator[PeerServer]:
    with running() as server:
        yield server


def at(server: PeerServer, token: Path | None, *, prefix: str = "", more: str = "") -> Store:
    opened = f"token_file={token}" if token else "connections=2"
    return open_store(f"evac://127.0.0.1:{server.port}/{prefix or fresh()}?{opened}{more}")


class TestPeerStore(StoreContract):
    @pytest.fixture
    def store(self, peer: PeerServer, token: Path) -> Store:
        return at(peer, token)


class TestPeerGroup(StoreContract):
    @pytest.fixture
    def store(self, several: list[PeerServer], token: Path) -> Store:
        return open_store(group(several, token))


@pytest.fixture(scope="module")
def several() -> Iterator[list[PeerServer]]:
    with running() as one, running() as another, running() as third:
        yield [one, another, third]


def group(servers: list[PeerServer], token: Path, *, prefix: str = "") -> str:
    named = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"evac://{named}/{prefix or fresh()}?token_file={token}"


def keys_at(server: PeerServer, token: Path, prefix: str) -> list[str]:
    found = asyncio.run(at(server, token, prefix=prefix).list(""))
    return [entry.key for entry in found]


def test_a_jobs_bytes_from_one_node_go_to_one_peer_and_jobs_spread(
    several: list[PeerServer], token: Path
) -> None:
    async def put(store: Store) -> None:
        for job in range(16):
            for name in ("a.bin", "b.bin", "__0.manifest.json"):
                await store.put(f"me/job-{job}/step-1.1/{name}", memoryview(b"x"))

    prefix = fresh()
    asyncio.run(put(open_store(group(several, token, prefix=prefix))))

    found = [keys_at(server, token, prefix) for server in several]
    assert sum(len(keys) for keys in found) == 48
    assert all(found)
    for keys in found:
        jobs = [key.split("/")[1] for key in keys]
        assert all(jobs.count(job) == 3 for job in jobs)


async def test_who_leaves_is_full_or_gone_is_passed_over(token: Path) -> None:
    data, seen = os.urandom(20 * MIB), list[int]()
    with (
        running(leaving=True) as leaving,
        running(replace(SETTINGS, budget=MIB)) as full,
        running() as good,
    ):
        with running() as gone:
            url = group([leaving, full, gone, good], token)
        store = open_store(url)
        for job in range(4):
            await store.put(f"me/{job}/a.bin", memoryview(data), progress=seen.append)

        assert sum(seen) == 4 * len(data)
        assert await store.get("me/3/a.bin") == data
        used = good.shown()["used"]
        assert isinstance(used, int)
        assert used >= 4 * len(data)
        assert leaving.shown()["used"] == 0


async def test_where_all_peers_leave_it_is_said(token: Path) -> None:
    with running(leaving=True) as one, running(leaving=True) as other:
        store = open_store(group([one, other], token))
        with pytest.raises(PeerLeaving):
            await store.put("a/b", memoryview(b"x"))


async def test_a_job_without_peers_has_no_such_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVAC_PEERS", raising=False)
    store = open_store("evac://job")

    with pytest.raises(StoreRejected, match="no peer of this job is known"):
        await store.put("a/b", memoryview(b"x"))
    assert await store.list("") == []
    assert not is_durable(store.url)


async def test_a_process_finds_its_jobs_peers_in_its_environment(
    peer: PeerServer, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVAC_PEERS", f" 127.0.0.1:{peer.port}, 127.0.0.1:1,,nonsense,a:99999")
    prefix = fresh()
    await at(peer, token, prefix=prefix).put("a", memoryview(b"x"))

    assert await open_store(f"evac://job/{prefix}?token_file={token}").get("a") == b"x"


async def test_a_peer_is_never_durable_and_says_in_its_url_nothing_secret(
    peer: PeerServer, token: Path
) -> None:
    store = at(peer, token, prefix="a")

    assert not is_durable(store.url)
    assert store.url == f"evac://127.0.0.1:{peer.port}/a?token_file={token}"
    assert TOKEN.decode() not in f"{store!r}"


@pytest.mark.parametrize(
    "url",
    [
        "evac://",
        "evac://host",
        "evac://host:0",
        "evac://host:99999",
        "evac://user:secret@host:1",
        "evac://host:1/a/../b",
        "evac://host:1?token_file=relative",
        "evac://host:1?token=secret",
        "evac://host:1?connections=0",
    ],
)
def test_a_url_of_no_peer_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(url)

    assert "secret" not in str(raised.value)


async def test_nobody_listens_there_says_every_call(token: Path) -> None:
    with running() as server:
        gone = at(server, token)

    for name, error in (await failures(gone)).items():
        assert type(error) is PeerGone, name
        assert error.reason == "connection refused", name


async def test_another_token_or_none_opens_nothing(peer: PeerServer, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"not the token of anybody here")

    for store in (at(peer, wrong), at(peer, None)):
        for name, error in (await failures(store)).items():
            assert type(error) is StoreRejected, name
            assert "access denied" in error.reason, name


async def test_a_token_that_cannot_be_read_is_named(peer: PeerServer, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    for name, reason in (("missing", "No such file"), ("empty", "is empty")):
        with pytest.raises(StoreRejected, match=reason):
            await at(peer, tmp_path / name).get("a")


async def test_a_leaving_peer_takes_nothing_new_and_gives_what_it_has(token: Path) -> None:
    leaving: list[bool] = []
    server = PeerServer(SETTINGS, SystemClock(), leaving=lambda: bool(leaving), promised=lambda: 0)
    server.open()
    try:
        store = at(server, token)
        await store.put("a/b", memoryview(b"state"))
        leaving.append(True)

        with pytest.raises(PeerLeaving):
            await store.put("a/c", memoryview(b"x"))
        with pytest.raises(PeerLeaving):
            await store.create("a/c", b"x")
        assert await store.get("a/b") == b"state"
    finally:
        server.close()


async def test_what_goes_with_a_node_that_leaves_is_told_once(token: Path) -> None:
    leaving: list[bool] = []
    server = PeerServer(SETTINGS, SystemClock(), leaving=lambda: bool(leaving), promised=lambda: 0)
    server.open()
    try:
        await at(server, token, prefix="me/job").put("step-1.1/a.bin", memoryview(b"state"))
        with capture_logs() as said:
            server.tell_what_leaves()
            leaving.append(True)
            for _ in range(3):
                server.tell_what_leaves()
    finally:
        server.close()
    [told] = [one for one in said if one["event"] == "peer.held_bytes_leave"]
    assert told["prefixes"] == ["me/job"]


async def test_a_full_peer_says_so_with_numbers_and_keeps_what_it_has(token: Path) -> None:
    with running(replace(SETTINGS, budget=24 * MIB)) as server:
        store = at(server, token)
        await store.put("job/step-1.1/a.bin", memoryview(bytearray(16 * MIB)))

        with pytest.raises(StoreRejected, match="16 MiB do not fit: 16 MiB of 24 MiB"):
            await store.put("other/step-1.1/a.bin", memoryview(bytearray(16 * MIB)))

        assert [e.key for e in await store.list("")] == ["job/step-1.1/a.bin"]


async def test_an_older_generation_goes_for_a_newer_ones_sake(token: Path) -> None:
    with running(replace(SETTINGS, budget=40 * MIB)) as server:
        store = at(server, token)
        for step in (1, 2, 3):
            await store.put(f"job/step-{step}.1/a.bin", memoryview(bytearray(16 * MIB)))

        kept = [e.key for e in await store.list("")]
        assert kept == ["job/step-2.1/a.bin", "job/step-3.1/a.bin"]


async def test_what_a_newer_whole_generation_replaces_is_forgotten(token: Path) -> None:
    with running() as server:
        store = at(server, token)
        for step in (10, 20, 30):
            await store.put(f"me/job/step-{step}.1/a.bin", memoryview(b"x"))

        marker = b'{"schema": 1, "newest": "step-20.1"}'
        await store.put("me/job/evac-job.json", memoryview(marker))

        kept = [e.key for e in await store.list("me/job")]
        assert kept == ["me/job/evac-job.json", "me/job/step-20.1/a.bin", "me/job/step-30.1/a.bin"]


async def test_a_peer_that_was_restarted_is_found_again(token: Path) -> None:
    with running() as server:
        port = server.port
        store = at(server, token, prefix="x")
        await store.put("a", memoryview(b"x"))
    with running(replace(SETTINGS, port=port)):
        with pytest.raises(StoreMissing):
            await store.get("a")
        await store.put("a", memoryview(b"y"))
        assert await store.get("a") == b"y"


async def test_a_chunk_that_arrives_damaged_is_refused_by_its_number(token: Path) -> None:
    data = bytearray(os.urandom(9 * MIB))
    with running() as server, flipping(server.port, after=5 * MIB) as port:
        there = open_store(f"evac://127.0.0.1:{port}?token_file={token}&connections=1")

        with pytest.raises(StoreUnavailable, match="chunk 1 arrived damaged"):
            await there.put("a/b", memoryview(data))

        assert await there.list("") == []


async def test_a_chunk_that_comes_back_damaged_is_no_answer(token: Path) -> None:
    with running() as server, flipping(server.port, after=5 * MIB, back=True) as port:
        there = open_store(f"evac://127.0.0.1:{port}?token_file={token}&connections=1")
        await there.put("a/b", memoryview(bytearray(9 * MIB)))

        with pytest.raises(StoreUnavailable, match="chunk 1 of the answer arrived damaged"):
            await there.get("a/b")


async def test_a_lost_connection_costs_one_part_of_a_large_body(token: Path) -> None:
    data = os.urandom(40 * MIB)
    with running() as server, flipping(server.port, after=20 * MIB, end=True) as port:
        there = open_store(f"evac://127.0.0.1:{port}?token_file={token}&connections=1")

        await there.put("a/b", memoryview(data))

        assert await there.get("a/b") == data


async def test_what_loses_its_connection_is_forgotten_and_may_be_tried_again(token: Path) -> None:
    data = os.urandom(9 * MIB)
    with running() as server, flipping(server.port, after=5 * MIB, end=True) as port:
        there = open_store(f"evac://127.0.0.1:{port}?token_file={token}&connections=1")

        with pytest.raises(StoreUnavailable, match="connection lost"):
            await there.put("a/b", memoryview(data))

        assert await there.list("") == []
        await Retry(there, sleep=asyncio.sleep, first=0.01).put("a/b", memoryview(data))
        assert await there.get("a/b") == data


@contextmanager
def flipping(port: int, *, after: int, back: bool = False, end: bool = False) -> Iterator[int]:
    """A man in between: turns one bit of the first byte behind *after*, once; or ends it there.

    Args:
        back: On the way from the peer.
    """
    done = threading.Event()

    def break_off(source: socket.socket, target: socket.socket) -> None:
        target.shutdown(socket.SHUT_RDWR)
        source.shutdown(socket.SHUT_WR)
        while source.recv(65536):
            pass

    def carry(source: socket.socket, target: socket.socket, *, harmful: bool) -> None:
        seen = 0
        with suppress(OSError):
            while piece := source.recv(65536):
                seen += len(piece)
                if harmful and seen > after and not done.is_set():
                    done.set()
                    if end:
                        break_off(source, target)
                        break
                    piece = bytes([piece[0] ^ 1]) + piece[1:]
                target.sendall(piece)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.create_connection(("127.0.0.1", port))
                opened.extend((client, server))
                for source, target, harmful in (
                    (client, server, not back),
                    (server, client, back),
                ):
                    thread = threading.Thread(
                        target=carry, args=(source, target), kwargs={"harmful": harmful}
                    )
                    threads.append(thread)
                    thread.start()

    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = threading.Thread(target=accept)
        accepting.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join()
    for one in opened:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    for one in opened:
        one.close()


async def test_what_waits_for_a_peer_that_nobody_asks_again_does_not_stay_open() -> None:
    now = 1000.0
    with running(replace(SETTINGS, token=b"")) as one, running(replace(SETTINGS, token=b"")) as two:
        first, second = (
            PeerStore(
                parse(f"evac://127.0.0.1:{server.port}/{fresh()}", options=OPTIONS),
                clock=lambda: now,
            )
            for server in (one, two)
        )
        await first.put("job/a.bin", memoryview(bytes(40 * MIB)))
        assert first._links.waiting >= 2
        now += WAITS_SECONDS / 2
        await second.put("job/b.bin", memoryview(b"x"))
        assert first._links.waiting >= 2
        now += WAITS_SECONDS / 2
        await second.put("job/b.bin", memoryview(b"x"))
        assert (first._links.waiting, second._links.waiting) == (0, 1)
        assert await second.get("job/b.bin") == b"x"
        assert [entry.nbytes for entry in await first.list("")] == [40 * MIB]


def test_of_peers_that_came_and_went_for_months_the_last_are_known() -> None:
    peers = KnownPeers(parse("evac://job", options=OPTIONS), PATIENT, lambda: 1000.0)
    for number in range(2 * MOST):
        address = f"10.0.{number // 256}.{number % 256}:9912"
        assert peers.store(address) is peers.store(address)
        peers.leave_alone(address, gone=True)
    assert all(len(known) == MOST for known in (peers._stores, peers._away, peers._gone))
    assert peers.is_gone(address)
    assert not peers.is_gone("10.0.0.0:9912")
