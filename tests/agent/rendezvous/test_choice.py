"""Nodes that leave at once come to one choice over real stores; what strangers write there harms nobody."""

import asyncio
import json
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import replace

import aiohttp
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__

from evac.generation import Generation
from evac.rendezvous import log
from evac.rendezvous.address import parse
from evac.rendezvous.events import Depart, encode
from evac.rendezvous.snapshot import Snapshot, dump
from evac.rendezvous.state import State
from evacd.clock import SystemClock
from evacd.rendezvous import Agreed, Departure, Word
from evacd.rendezvous.jobstore import JobStoreAnnouncer
from tests.handlers.rendezvous.nodes import open_keys
from tests.services.etcd import etcd
from tests.services.process import HOST
from tests.services.skipping import or_skip

JOB = "alice/gpt"
Make = Callable[[str, list[Agreed]], JobStoreAnnouncer]


@pytest.fixture(scope="module")
def etcd_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with or_skip(), etcd(tmp_path_factory.mktemp("etcd")) as port:
        yield port


@pytest.fixture(params=["libuv", "legacy", "etcd"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a store that no other test has."""
    if request.param == "etcd":
        port = request.getfixturevalue("etcd_port")
        yield f"etcd://{HOST}:{port}/evac/{request.node.name}"
        return
    server = TCPStore(
        HOST, 0, is_master=True, wait_for_workers=False, use_libuv=request.param == "libuv"
    )
    yield f"tcpstore://{HOST}:{server.port}/evac/run"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def daemon(session: aiohttp.ClientSession) -> Make:
    """One node's announcer, and what it was told."""

    def make(store: str, told: list[Agreed]) -> JobStoreAnnouncer:
        return JobStoreAnnouncer(
            lambda job: (store,) if job == JOB else (),
            session,
            timeout_seconds=60.0,
            clock=SystemClock(),
            agreed=told.append,
        )

    return make


def leaving(node: str, step: int, incarnation: int = 1) -> Departure:
    generation = Generation(incarnation, step)
    return Departure(
        Word.LEAVING, node, "b1", "o-1", 30.0, job=JOB, generation=generation, sequence=7
    )


async def test_of_many_that_leave_at_once_all_come_to_the_same(store: str, daemon: Make) -> None:
    told: list[list[Agreed]] = [[] for _ in range(8)]
    daemons = [daemon(store, one) for one in told]

    async with TaskGroup() as tasks:
        for number, each in enumerate(daemons):
            tasks.create_task(each.announce(leaving(f"n{number}", 20 + number % 3)))
    for each in daemons:
        await each.look(JOB)

    assert {one[-1].generation for one in told} == {Generation(1, 20)}
    assert len({one[-1].node for one in told}) == 1
    # Whoever was first heard itself, at once.
    assert any(one[0].node == f"n{number}" for number, one in enumerate(told))


async def test_the_second_reads_back_what_the_first_has_chosen(store: str, daemon: Make) -> None:
    told: list[Agreed] = []
    await daemon(store, []).announce(leaving("n0", 20))

    assert await daemon(store, told).announce(leaving("n1", 21)) is None

    assert told == [Agreed(JOB, Generation(1, 20), "n0", "b1")]


async def test_what_agents_have_read_and_deleted_still_counts(store: str, daemon: Make) -> None:
    chose = Depart("leaving", "n0", "b1", 1, step=20, incarnation=1, job=JOB)
    state = State(choices={JOB: chose})
    with closing(open_keys(parse(store))) as keys:
        keys.put(log.SNAPSHOT, dump(Snapshot(40, 30, state)))
    told: list[Agreed] = []

    await daemon(store, told).announce(leaving("n1", 21))

    assert [one.node for one in told] == ["n0"]


async def test_who_stays_after_all_leaves_the_choice_to_the_others(
    store: str, daemon: Make
) -> None:
    first, told = daemon(store, []), list[Agreed]()
    await first.announce(leaving("n0", 20))
    await first.announce(replace(leaving("n0", 20), word=Word.STAYING, sequence=8))

    await daemon(store, told).announce(leaving("n1", 21))

    assert [one.node for one in told] == ["n1"]


EVIL = [
    b"",
    b"{",
    b"[" * 9000,
    b"x" * 100_000,
    json.dumps({"do": "depart", "job": JOB}).encode(),
    *(
        json.dumps(
            {"do": "depart", "word": "leaving", "node": "n0", "boot": "b1", "job": JOB, **more}
        ).encode()
        for more in (
            {"step": 10**400, "incarnation": 1},
            {"step": 2**53 + 1, "incarnation": 1},
            {"step": 5, "incarnation": -1},
            {"step": 5, "incarnation": 1, "seconds_left": 10**400},
            {"step": 5, "incarnation": 1, "sequence": float("inf")},
            {"step": 1.5, "incarnation": 1},
            {"step": "5", "incarnation": 1},
            {"step": True, "incarnation": 1},
            {"step": 5, "incarnation": 1, "job": "j" * 5000},
            {"step": 5, "incarnation": 1, "job": ["alice/gpt"]},
        )
    ),
]


async def test_what_strangers_write_is_no_choice(store: str, daemon: Make) -> None:
    # The older server takes no empty value for one.
    with closing(open_keys(parse(store))) as keys:
        for number, entry in enumerate(one for one in EVIL if one):
            keys.put(log.entry(number), entry)
    told: list[Agreed] = []
    each = daemon(store, told)

    await each.look(JOB)
    assert told == []
    assert await each.announce(leaving("n1", 21)) is None

    assert [one.node for one in told] == ["n1"]


@pytest.mark.parametrize(
    "lies",
    [
        {"choices": 1},
        {"choices": [1]},
        {"choices": [{}]},
        {"choices": [{"word": "leaving", "node": "n", "boot": "b", "step": 10**400, "job": JOB}]},
        {"choices": [{"word": "leaving", "node": "n", "boot": "b", "step": 5, "job": 7}]},
        {"at": float("inf")},
        {"at": 10**400},
    ],
    ids=range(7),
)
async def test_a_snapshot_of_a_stranger_is_none(
    store: str, daemon: Make, lies: dict[str, object]
) -> None:
    document = json.loads(dump(Snapshot(0, 0, State()))) | lies
    with closing(open_keys(parse(store))) as keys:
        keys.put(log.SNAPSHOT, json.dumps(document).encode())
    told: list[Agreed] = []
    each = daemon(store, told)

    await each.look(JOB)
    assert told == []
    assert await each.announce(leaving("n1", 21)) is None

    assert [one.node for one in told] == ["n1"]


async def test_a_log_without_an_end_is_left(session: aiohttp.ClientSession) -> None:
    """What answers "there is one more" for ever costs the time limit, and moves no choice."""
    chose = encode(Depart("leaving", "n0", "b1", 1, step=20, incarnation=1, job=JOB))
    answer = len(chose).to_bytes(8, "little") + chose
    ended = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            opened = await reader.readexactly(10)
            writer.write(opened[6:])
            while await reader.read(1 << 16):
                # As an answer to whatever was asked: "not there" first, then always this entry.
                writer.write(b"\1" if not ended.is_set() else answer)
                ended.set()
        except ConnectionError:
            pass
        finally:
            writer.close()

    told: list[Agreed] = []
    async with await asyncio.start_server(endless, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        tells = JobStoreAnnouncer(
            lambda _job: (f"tcpstore://{HOST}:{port}/evac/run",),
            session,
            timeout_seconds=1.0,
            clock=SystemClock(),
            agreed=told.append,
        )
        async with asyncio.timeout(60):
            assert await tells.announce(leaving("n1", 21))

    assert told == []
