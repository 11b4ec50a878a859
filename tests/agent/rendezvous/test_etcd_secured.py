"""Departures into an etcd with TLS and users; and an address that a workload made up to get at a password."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import structlog
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer

from evac.errors import ConfigError
from evac.rendezvous import log
from evac.rendezvous.address import ETCD, ETCD_TLS, Address
from evac.rendezvous.etcd_access import Access, EtcdFiles, Shown
from evac.rendezvous.etcd_keys import EtcdKeys
from evac.rendezvous.events import Depart, decode
from evac.rendezvous.keys import Denied
from evacd.clock import SystemClock
from evacd.config import Config, DepartureConfig, EtcdConfig
from evacd.rendezvous import Departure, Word
from evacd.rendezvous.configured import announcers, read_secrets
from evacd.rendezvous.etcd import Etcd, Etcds
from evacd.rendezvous.jobstore import JobStoreAnnouncer
from tests.services.etcd_secured import PASSWORD, STRANGER, USER, Secured, etcd_secured, write
from tests.services.process import HOST
from tests.services.skipping import or_skip

LEAVING = Departure(Word.LEAVING, "gpu-7", "b1", "ab12-1", 29.8, job="alice/gpt", sequence=7)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with or_skip(), etcd_secured(tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def tells(
    session: aiohttp.ClientSession, etcds: Etcds, address: Address | str
) -> JobStoreAnnouncer:
    return JobStoreAnnouncer(
        lambda _job: (str(address),),
        session,
        # Whoever tries in vain, tries for ever.
        timeout_seconds=1e6,
        clock=SystemClock(),
        etcds=etcds,
        denied_pauses=(0.0,),
    )


def named(etcd: Secured, files: EtcdFiles) -> Etcds:
    return Etcds([f"https://{HOST}:{etcd.port}"], files)


def said(etcd: Secured, address: Address) -> list[str]:
    with closing(EtcdKeys(address, Access(etcd.files))) as keys:
        found = [decode(text) for text in log.read_on(keys, 0)]
    return [event.word for event in found if isinstance(event, Depart)]


async def test_a_departure_is_written_as_it_is_configured(
    etcd: Secured, session: aiohttp.ClientSession
) -> None:
    files, address = etcd.files, etcd.address("configured")
    config = Config(
        departure=DepartureConfig(timeout_seconds=1e6),
        etcd=EtcdConfig(
            (f"https://{HOST}:{etcd.port}",),
            Path(files.ca),
            Path(files.cert),
            Path(files.key),
            files.user,
            Path(files.password),
        ),
    )
    secrets = read_secrets(config)
    (told,) = announcers(
        config, lambda _job: (str(address),), session, SystemClock(), secrets, lambda _: None
    )

    assert await told.announce(LEAVING) is None
    # As where users are changed, or etcd was started anew: no token is known any more.
    await asyncio.to_thread(etcd.as_root, "/v3/auth/disable")
    await asyncio.to_thread(etcd.ask, "/v3/auth/enable")
    assert await told.announce(replace(LEAVING, word=Word.DURABLE, sequence=8)) is None

    assert await asyncio.to_thread(said, etcd, address) == ["leaving", "durable"]
    # It goes with the job, should that be dead.
    assert f"{address.prefix}/lease" in await asyncio.to_thread(etcd.keys)
    assert PASSWORD not in repr(secrets)


def wrong_password(etcd: Secured) -> Etcds:
    return named(etcd, etcd.user(USER, "not this one"))


def no_permission(etcd: Secured) -> Etcds:
    return named(etcd, etcd.user(STRANGER, STRANGER))


def no_user(etcd: Secured) -> Etcds:
    return named(etcd, replace(etcd.files, user="", password=""))


def wrong_ca(etcd: Secured) -> Etcds:
    path = etcd.folder / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return named(etcd, replace(etcd.files, ca=str(path)))


def no_certificate(etcd: Secured) -> Etcds:
    return named(etcd, replace(etcd.files, cert="", key=""))


def wrong_certificate_files(etcd: Secured) -> EtcdFiles:
    cert, key = write(etcd.folder, "other", trustme.CA())
    return replace(etcd.files, cert=cert, key=key)


def wrong_certificate(etcd: Secured) -> Etcds:
    return named(etcd, wrong_certificate_files(etcd))


def no_file(etcd: Secured) -> Etcds:
    return named(etcd, replace(etcd.files, password=str(etcd.folder / "nothing")))


def unnamed(etcd: Secured) -> Etcds:
    return Etcds(["https://elsewhere:2379"], etcd.files)


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (wrong_password, "etcd knows no user 'job' with this password"),
        (no_permission, "etcd gives 'stranger' no permission to read and write below evac/run/"),
        (no_user, "etcd wants a user and a password"),
        (wrong_ca, "its certificate is not to be trusted: "),
        (no_certificate, "it wants a client certificate, and not this one"),
        (wrong_certificate, "it wants a client certificate, and not this one"),
        (no_file, "nothing: No such file or directory"),
        (unnamed, "it wants a client certificate, and not this one"),
    ],
)
async def test_who_is_not_let_in_is_told_why_and_does_not_try_on(
    etcd: Secured,
    session: aiohttp.ClientSession,
    shown: Callable[[Secured], Etcds],
    told: str,
) -> None:
    with structlog.testing.capture_logs() as logged:
        wrong = await tells(session, await asyncio.to_thread(shown, etcd), etcd.address()).announce(
            LEAVING
        )

    assert wrong is not None
    assert told in wrong
    assert PASSWORD not in f"{wrong} {logged}"


class Changing(Etcds):
    """A person puts it right between the first try and the second."""

    def __init__(self, etcd: Secured, files: EtcdFiles, change: Callable[[], object]) -> None:
        super().__init__([f"https://{HOST}:{etcd.port}"], files)
        self._change, self._tries = change, 0

    async def shown(self, address: Address) -> Shown:
        self._tries += 1
        if self._tries == 2:
            await asyncio.to_thread(self._change)
        return await super().shown(address)


def password_changed(etcd: Secured) -> tuple[EtcdFiles, Callable[[], object]]:
    files = etcd.user(USER, "not this one")
    return files, lambda: Path(files.password).write_text(PASSWORD)


def role_granted(etcd: Secured) -> tuple[EtcdFiles, Callable[[], object]]:
    etcd.as_root("/v3/auth/user/add", name="later", password="later")
    grant = partial(etcd.as_root, "/v3/auth/user/grant", user="later", role=USER)
    return etcd.user("later", "later"), grant


def certificate_renewed(etcd: Secured) -> tuple[EtcdFiles, Callable[[], object]]:
    files = wrong_certificate_files(etcd)

    def renew() -> None:
        Path(files.cert).write_bytes(Path(etcd.files.cert).read_bytes())
        Path(files.key).write_bytes(Path(etcd.files.key).read_bytes())

    return files, renew


@pytest.mark.parametrize("changed", [password_changed, role_granted, certificate_renewed])
async def test_a_departure_amid_a_change_of_users_is_tried_again(
    etcd: Secured,
    session: aiohttp.ClientSession,
    changed: Callable[[Secured], tuple[EtcdFiles, Callable[[], object]]],
) -> None:
    files, change = await asyncio.to_thread(changed, etcd)
    address = etcd.address(changed.__name__)

    assert await tells(session, Changing(etcd, files, change), address).announce(LEAVING) is None

    assert await asyncio.to_thread(said, etcd, address) == ["leaving"]


async def test_a_name_that_the_certificate_does_not_have_is_not_believed(
    etcd: Secured, session: aiohttp.ClientSession
) -> None:
    """Whoever answers at its address."""
    etcds = Etcds([f"https://localhost:{etcd.port}"], etcd.files)
    address = replace(etcd.address(), host="localhost")

    wrong = await tells(session, etcds, address).announce(LEAVING)

    assert wrong is not None
    assert "not valid for 'localhost'" in wrong


@pytest.mark.parametrize("endpoint", ["http://{}:{}", "https://{}:{}", "http://elsewhere:{1}"])
async def test_an_address_that_a_workload_made_up_is_shown_no_secret(
    session: aiohttp.ClientSession, tmp_path: Path, endpoint: str
) -> None:
    """... be it the very host and port that is named, but over TLS."""
    heard: list[str] = []

    async def listen(request: web.Request) -> web.Response:
        heard.append(f"{request.path} {dict(request.headers)} {await request.text()}")
        return web.json_response({"message": "etcdserver: authentication failed"}, status=400)

    (tmp_path / "password").write_text("hunter2")
    files = EtcdFiles(user="me", password=str(tmp_path / "password"))
    app = web.Application()
    app.router.add_post("/{path:.*}", listen)
    async with TestServer(app) as server:
        port = server.port
        etcds = Etcds([endpoint.format(HOST, port)], files)
        assert await tells(session, etcds, f"etcd://{HOST}:{port}/evac/run").announce(LEAVING)

    assert any("hunter2" in one for one in heard) == (endpoint == "http://{}:{}")
    assert all("/v3/kv/" in one for one in heard) == (endpoint != "http://{}:{}")


async def test_keys_of_others_are_not_written_with_our_password(
    session: aiohttp.ClientSession, etcd: Secured
) -> None:
    address = replace(etcd.address(), prefix="evacuees/run")

    wrong = await tells(session, named(etcd, etcd.files), address).announce(LEAVING)

    assert wrong is not None
    assert "no keys but those below evac/ are written with a password" in wrong


async def test_what_breaks_off_before_it_says_why_is_asked(
    session: aiohttp.ClientSession, etcd: Secured
) -> None:
    """Its word on our certificate may be lost with the connection that we wrote to."""
    shown = await no_certificate(etcd).shown(etcd.address())
    each = Etcd(session, etcd.address(), HOST, shown)
    assert shown.context is not None

    why = ""
    async with asyncio.timeout(60):
        while not why:  # a busy machine may be too slow for once
            why = await each._refusal(shown.context)  # pyright: ignore[reportPrivateUsage]

    assert why == "it wants a client certificate, and not this one"


async def test_what_speaks_no_tls_is_told_apart(session: aiohttp.ClientSession) -> None:
    async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        address = Address(ETCD_TLS, HOST, port, "evac/run")
        each = Etcd(session, address, HOST, await Etcds().shown(address))
        with pytest.raises(Denied, match="it does not speak TLS"):
            await each.get("snap")


def test_nobody_there_is_another_matter(etcd: Secured) -> None:
    """It may be there soon: that is tried again (`test_jobstore`)."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
    address = Address(ETCD_TLS, HOST, port, "evac/run")

    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            shown = await named(etcd, etcd.files).shown(address)
            await Etcd(session, address, HOST, shown).get("snap")

    with pytest.raises(Exception, match=r"(?i)connect") as failed:
        asyncio.run(ask())
    assert not isinstance(failed.value, Denied)


HERE = ("https://etcd:2379",)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (EtcdConfig(HERE, cert_file=Path("/c")), r"etcd\.cert_file: expected etcd\.key_file"),
        (EtcdConfig(HERE, key_file=Path("/c")), r"etcd\.key_file: expected etcd\.cert_file"),
        (EtcdConfig(HERE, user="me"), r"etcd\.user: expected etcd\.password_file"),
        (
            EtcdConfig(HERE, password_file=Path("/c")),
            r"etcd\.password_file: expected etcd\.user",
        ),
        (
            EtcdConfig(user="me", password_file=Path("/c")),
            r"etcd\.user: expected etcd\.endpoints beside it",
        ),
        (EtcdConfig(HERE, ca_file=Path("/none")), r"/none: No such file or directory"),
        (EtcdConfig(HERE, ca_file=Path("/dev/null")), r"/dev/null: holds no certificates"),
    ],
)
def test_what_is_configured_by_half_is_told_at_the_start(given: EtcdConfig, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_secrets(Config(etcd=given))


def test_an_endpoint_has_a_port_without_one() -> None:
    etcds = Etcds(["http://h", "https://[::1]:1"])

    assert set(etcds._named) == {(ETCD, "h", 2379), (ETCD_TLS, "::1", 1)}  # pyright: ignore[reportPrivateUsage]
