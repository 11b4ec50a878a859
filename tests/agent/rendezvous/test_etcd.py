"""The same departures in a real etcd."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evac.rendezvous import log
from evac.rendezvous.address import ETCD, Address, prefix_of
from evac.rendezvous.etcd_access import EtcdFiles
from evac.rendezvous.etcd_keys import EtcdKeys
from evac.rendezvous.events import Depart, decode
from evac.rendezvous.keys import Unreachable
from evacd.clock import SystemClock
from evacd.rendezvous import Departure, Word
from evacd.rendezvous.etcd import Etcd, Etcds
from evacd.rendezvous.jobstore import JobStoreAnnouncer
from tests.agent.busy import no_thread_left
from tests.services.etcd import etcd
from tests.services.process import HOST
from tests.services.skipping import or_skip

LEAVING = Departure(Word.LEAVING, "gpu-7", "b1", "ab12-1", 29.8, job="alice/gpt", sequence=7)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with or_skip(), etcd(tmp_path_factory.mktemp("etcd")) as port:
        yield port


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def opened(session: aiohttp.ClientSession, address: Address) -> Etcd:
    return Etcd(session, address, address.host, await Etcds().shown(address))


async def test_a_departure_lies_in_the_jobs_log(port: int, session: aiohttp.ClientSession) -> None:
    tells = JobStoreAnnouncer(
        lambda _job: (f"etcd://{HOST}:{port}/evac/run",),
        session,
        timeout_seconds=30.0,
        clock=SystemClock(),
    )
    assert await tells.announce(LEAVING) is None
    assert await tells.announce(LEAVING) is None
    assert await tells.announce(replace(LEAVING, word=Word.DURABLE, sequence=8)) is None

    keys = EtcdKeys(Address(ETCD, HOST, port, "evac/run"))
    found = [decode(text) for text in log.read_on(keys, 0)]
    keys.close()

    assert [event.word for event in found if isinstance(event, Depart)] == ["leaving", "durable"]


async def test_what_it_is_shown_is_read_where_all_threads_are_busy(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    etcds = Etcds([f"http://{HOST}:2379"], EtcdFiles(user="evac", password=str(password)))

    async with no_thread_left():
        shown = await etcds.shown(Address(ETCD, HOST, 2379, f"{prefix_of('')}run"))

    assert (shown.login.user, shown.login.password) == ("evac", "secret")


async def test_what_agents_write_it_reads(port: int, session: aiohttp.ClientSession) -> None:
    address = Address(ETCD, HOST, port, "evac/other")
    keys = EtcdKeys(address)
    keys.put("snap", b"there")
    keys.close()
    etcd = await opened(session, address)

    assert await etcd.get("snap") == b"there"
    assert await etcd.get("none") is None
    assert await etcd.create("snap", b"mine") == b"there"


@pytest.mark.parametrize(
    "answer", ["", "[]", "nonsense", '{"kvs": 1}', '{"kvs": [{"value": "no base64!"}]}', "[" * 9999]
)
async def test_what_is_no_etcd_is_told_apart(session: aiohttp.ClientSession, answer: str) -> None:
    async def speak(_request: web.Request) -> web.Response:
        return web.Response(text=answer)

    app = web.Application()
    app.router.add_post("/v3/kv/txn", speak)
    async with TestServer(app) as server:
        assert server.port is not None
        address = Address(ETCD, HOST, server.port, "evac/run")
        with pytest.raises(Unreachable):
            await (await opened(session, address)).get("snap")


async def test_a_redirect_is_not_followed(session: aiohttp.ClientSession) -> None:
    async def elsewhere(_request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("http://169.254.169.254/")

    app = web.Application()
    app.router.add_post("/v3/kv/txn", elsewhere)
    async with TestServer(app) as server:
        assert server.port is not None
        address = Address(ETCD, HOST, server.port, "evac/run")
        with pytest.raises(Unreachable, match="answered 307"):
            await (await opened(session, address)).get("snap")
