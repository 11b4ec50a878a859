"""Departures in the log of a job, over real stores; and addresses that a workload made up."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__

from evac.generation import Generation
from evac.rendezvous import log
from evac.rendezvous.events import Depart, decode
from evac.rendezvous.services import first_entry, taken_over
from evac.rendezvous.snapshot import Snapshot, dump
from evac.rendezvous.state import Agent, Round, State, hosted
from evac.rendezvous.torch_keys import TorchKeys, connect
from evacd.clock import SystemClock
from evacd.rendezvous import Departure, Word
from evacd.rendezvous.jobstore import JobStoreAnnouncer

HOST = "127.0.0.1"
LEAVING = Departure(
    Word.LEAVING,
    "gpu-7",
    "b1",
    "ab12-1",
    29.8,
    job="alice/gpt",
    generation=Generation(incarnation=2, step=1200),
    store="file:///mnt/ckpt",
    sequence=7,
)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def server() -> TCPStore:
    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def keys(server: TCPStore) -> TorchKeys:
    return TorchKeys(connect(HOST, server.port, seconds=10), "evac/run")


def announcer(
    session: aiohttp.ClientSession, *stores: str, seconds: float = 30.0, **more: tuple[str, ...]
) -> JobStoreAnnouncer:
    return JobStoreAnnouncer(
        lambda job: stores if job == "alice/gpt" else (),
        session,
        timeout_seconds=seconds,
        clock=SystemClock(),
        configured=more.get("configured", ()),
    )


def entries(keys: TorchKeys, number: int = 0) -> list[object]:
    return [decode(text) for text in log.read_on(keys, number)]


async def test_all_words_of_one_departure_lie_in_the_jobs_log(
    session: aiohttp.ClientSession, server: TCPStore, keys: TorchKeys
) -> None:
    tells = announcer(session, f"tcpstore://{HOST}:{server.port}/evac/run")

    assert await tells.announce(LEAVING) is None
    assert await tells.announce(replace(LEAVING, word=Word.DURABLE, sequence=8)) is None

    told = ("leaving", "gpu-7", "b1", 7, "ab12-1", 29.8, 1200, 2, "file:///mnt/ckpt", "")
    expected = Depart(*told, job="alice/gpt")
    assert entries(keys) == [expected, replace(expected, word="durable", sequence=8)]


async def test_it_lands_behind_what_agents_have_read_and_deleted(
    session: aiohttp.ClientSession, server: TCPStore, keys: TorchKeys
) -> None:
    keys.put(log.SNAPSHOT, dump(Snapshot(40, 30, State())))
    keys.put(log.entry(40), b"{}")
    tells = announcer(session, f"tcpstore://{HOST}:{server.port}/evac/run")

    assert await tells.announce(LEAVING) is None

    assert len(entries(keys, 41)) == 1


async def test_said_twice_it_stands_there_once(
    session: aiohttp.ClientSession, server: TCPStore, keys: TorchKeys
) -> None:
    tells = announcer(session, f"tcpstore://{HOST}:{server.port}/evac/run")

    await tells.announce(LEAVING)
    await tells.announce(LEAVING)

    assert len(entries(keys)) == 1


async def test_the_store_is_remembered_when_its_workers_are_not(
    session: aiohttp.ClientSession, server: TCPStore, keys: TorchKeys
) -> None:
    stores = [f"tcpstore://{HOST}:{server.port}/evac/run"]
    tells = JobStoreAnnouncer(
        lambda _job: tuple(stores), session, timeout_seconds=30.0, clock=SystemClock()
    )
    await tells.announce(LEAVING)
    stores.clear()
    lost = replace(LEAVING, word=Word.LOST, sequence=8, reason="no time")

    assert tells.concerns(lost)
    assert await tells.announce(lost) is None
    assert len(entries(keys)) == 2


async def test_what_became_of_the_bytes_reaches_those_who_stay_when_the_log_leaves_with_its_host(
    session: aiohttp.ClientSession, server: TCPStore, keys: TorchKeys
) -> None:
    """Which of the others serves it on is not known yet when the departure is told."""
    others = [TCPStore(HOST, 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    heirs = [TorchKeys(connect(HOST, one.port, seconds=10), "evac/run") for one in others]
    host = Agent("a", "gpu-7", "b1", "h:1")
    stay = [Agent(str(n), f"n{n}", "b", f"{HOST}:{one.port}") for n, one in enumerate(others)]
    state = hosted(State(round=Round(1, (host, *stay))), host)
    keys.put(log.SNAPSHOT, dump(Snapshot(0, 0, state)))
    at = f"tcpstore://{HOST}:{server.port}/evac/run"
    tells = announcer(session, at, seconds=60.0)

    assert await tells.announce(LEAVING) is None
    # The host still serves it: nothing is written where nobody reads.
    assert await tells.announce(replace(LEAVING, word=Word.WRITTEN, sequence=8)) is None
    assert [len(entries(one)) for one in (keys, *heirs)] == [2, 0, 0]

    moved = taken_over(state, stay[1], 1, f"{HOST}:{server.port}")
    heirs[1].put(log.SNAPSHOT, dump(Snapshot(first_entry(1), first_entry(1), moved)))
    assert await tells.announce(replace(LEAVING, word=Word.DURABLE, sequence=9)) is None

    (said,) = entries(heirs[1], first_entry(1))
    assert isinstance(said, Depart)
    assert said.word == "durable"
    assert entries(heirs[0]) == []


async def test_a_configured_store_hears_of_all_jobs(
    session: aiohttp.ClientSession, server: TCPStore, keys: TorchKeys
) -> None:
    tells = announcer(session, configured=(f"tcpstore://{HOST}:{server.port}/evac/run",))

    assert await tells.announce(replace(LEAVING, job="")) is None
    assert len(entries(keys)) == 1


async def test_a_job_without_a_store_is_nobodys_concern(session: aiohttp.ClientSession) -> None:
    assert not announcer(session).concerns(LEAVING)
    assert not announcer(session, "tcpstore://h:1/x").concerns(replace(LEAVING, job="bob/other"))


@pytest.mark.parametrize(
    "address",
    [
        "tcpstore://169.254.169.254:80/evac/run",
        "etcd://[fe80::1]:2379/evac/run",
        "etcd://[::ffff:169.254.169.254]:80/evac/run",
        "tcpstore://224.0.0.1:1/evac/run",
        "tcpstore://0.0.0.0:1/evac/run",
        "http://127.0.0.1/",
        "tcpstore://user:word@127.0.0.1:1/x",
        "nonsense",
    ],
)
async def test_an_address_that_a_workload_made_up_is_not_connected_to(
    session: aiohttp.ClientSession, address: str
) -> None:
    assert await announcer(session, address).announce(LEAVING)


async def test_a_store_that_says_nothing_costs_the_time_limit_and_no_more(
    session: aiohttp.ClientSession, server: TCPStore, keys: TorchKeys
) -> None:
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        tells = announcer(
            session,
            f"tcpstore://{HOST}:{port}/evac/run",
            f"tcpstore://{HOST}:{server.port}/evac/run",
            seconds=0.5,
        )
        async with asyncio.timeout(60):
            wrong = await tells.announce(LEAVING)

    assert wrong is not None
    assert f":{port}" in wrong
    assert f":{server.port}" not in wrong
    # The other one heard of it all the same.
    assert len(entries(keys)) == 1


async def test_a_store_that_comes_back_in_time_is_told(session: aiohttp.ClientSession) -> None:
    with socket.socket() as asked:
        asked.bind((HOST, 0))
        port = asked.getsockname()[1]
    tells = announcer(session, f"tcpstore://{HOST}:{port}/evac/run", seconds=60.0)

    telling = asyncio.create_task(tells.announce(LEAVING))  # noqa: TID251 - awaited below
    await asyncio.sleep(0.3)
    server = await asyncio.to_thread(
        lambda: TCPStore(HOST, port, is_master=True, wait_for_workers=False)
    )

    assert await telling is None
    assert len(entries(TorchKeys(connect(HOST, server.port, seconds=10), "evac/run"))) == 1


async def test_what_is_written_is_json(
    session: aiohttp.ClientSession, server: TCPStore, keys: TorchKeys
) -> None:
    await announcer(session, f"tcpstore://{HOST}:{server.port}/evac/run").announce(LEAVING)

    written = keys.get([log.entry(0)])[0]

    assert written is not None
    assert json.loads(written)["node"] == "gpu-7"
