"""What a user's source says of a notice that stands: from the start, and sixty times over."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evacd.facts import Cancelled, Confidence, Noticed, Probe, Quiet, Unknown
from evacd.notice import Source
from evacd.notice.metadata import Limits
from evacd.notice.simulate.faults import Faults, parse
from evacd.notice.user import ExecSource, FileSource, HttpSource
from tests.agent.notice.hearing import MovedClock, watching
from tests.agent.notice.user.conftest import document, entry

CAT = shutil.which("cat") or "/bin/cat"
PATIENT = Limits(connect=10.0, read=10.0)
# Later than any of the looks.
SAYS = document(entry(seconds_left=3600.0, deadline=None))

Open = Callable[[str, bytes], AbstractAsyncContextManager[Source]]
Record = Callable[[str, object], None]


@pytest.fixture
def faults() -> Faults:
    """What is wrong with the server: nothing yet."""
    return Faults()


@pytest.fixture
def opened(
    session: aiohttp.ClientSession, clock: MovedClock, tmp_path: Path, faults: Faults
) -> Open:
    """A source of that name whose user says that."""

    async def answer(request: web.Request) -> web.StreamResponse:
        wrong = await faults(request)
        body = (tmp_path / "notice.json").read_bytes()
        return wrong or web.Response(body=body, content_type="application/json")

    @asynccontextmanager
    async def opened(name: str, says: bytes) -> AsyncIterator[Source]:
        path = tmp_path / "notice.json"
        path.write_bytes(says)
        path.chmod(0o644)
        app = web.Application()
        app.router.add_get("/", answer)
        async with TestServer(app) as server:
            match name:
                case "file":
                    yield FileSource(path, clock, period=0.02, jitter=lambda: 0.0)
                case "exec":
                    yield ExecSource((CAT, str(path)), clock, period=0.02, jitter=lambda: 0.0)
                case _:
                    url = str(server.make_url("/"))
                    yield HttpSource(
                        session, url, clock, period=0.02, limits=PATIENT, jitter=lambda: 0.0
                    )

    return opened


SOURCES = pytest.mark.parametrize("name", ["file", "exec", "http"])


@SOURCES
async def test_what_stands_at_the_start_is_told_first(
    opened: Open, record_property: Record, name: str
) -> None:
    record_property("matrix", (name, "at-start"))
    async with opened(name, SAYS) as source, watching(source) as hearing:
        assert await hearing.until(Noticed) == 0


@SOURCES
async def test_sixty_repeats_are_one_notice_whose_deadline_stays(
    opened: Open, clock: MovedClock, record_property: Record, name: str
) -> None:
    record_property("matrix", (name, "x60"))
    told: set[Probe] = set()
    async with opened(name, SAYS) as source:
        for _ in range(60):
            told.add(await source.probe())
            clock.now += 0.1

    (probe,) = told
    assert isinstance(probe, Noticed)
    assert probe.notice.deadline == 1000.0 + 3600.0


def _confidence(probe: Probe) -> Confidence | None:
    return probe.notice.confidence if isinstance(probe, Noticed) else None


@SOURCES
async def test_advice_that_becomes_real_keeps_its_id_and_is_never_cancelled(
    opened: Open, tmp_path: Path, record_property: Record, name: str
) -> None:
    record_property("matrix", (name, "advice-then-real"))
    advice = document(entry(confidence="advisory"))
    async with opened(name, advice) as source, watching(source) as hearing:
        at = await hearing.until(Noticed)
        aside = tmp_path / "notice.new"
        aside.write_bytes(document(entry(confidence="certain")))
        aside.rename(tmp_path / "notice.json")
        while _confidence(hearing.told[at]) is not Confidence.CERTAIN:
            at = await hearing.until(Noticed, after=at + 1)

    assert not [probe for probe in hearing.told if isinstance(probe, Cancelled | Quiet)]
    assert {probe.notice.id for probe in hearing.told if isinstance(probe, Noticed)} == {"block-7"}


@pytest.mark.parametrize("code", ["301", "400", "403", "410", "429", "503"])
async def test_a_server_that_answers_so_is_unknown_and_clears_no_notice(
    opened: Open, faults: Faults, record_property: Record, code: str
) -> None:
    record_property("matrix", ("http", code))
    async with opened("http", SAYS) as source:
        first = await source.probe()
        faults.add(parse(f"status={code}"))
        probe = await source.probe()
        faults.clear()

        assert isinstance(probe, Unknown)
        assert probe.cure
        assert await source.probe() == first
