"""Every cloud's source from its start to the end of a notice: more cells of the table.

`test_matrix.py` has the faults; here are what stands before the daemon does, what is taken back,
what stays as it is, and the tokens that only EC2 has.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from evacd.facts import Cancelled, Noticed, Probe, Quiet, Unknown
from evacd.notice import aws
from evacd.notice.metadata import Limits
from evacd.notice.simulate.aws import AwsMetadata
from evacd.notice.simulate.faults import parse
from tests.agent.notice.cells import CLOUDS, COLUMNS, OTHERS, SOURCES, filled
from tests.agent.notice.hearing import Asked, MovedClock, watching
from tests.agent.notice.test_bug_reports import HERE, functions_of
from tests.agent.notice.test_matrix import OPEN, PATIENT, ROWS, Row, simulated

Record = Callable[[str, object], None]

EACH = pytest.mark.parametrize("row", [pytest.param(row, id=row.source) for row in ROWS])
OF_AWS = pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.source) for row in ROWS if row.cloud == "aws"]
)


@EACH
async def test_what_stands_at_the_start_is_told_first(
    session: aiohttp.ClientSession, record_property: Record, row: Row
) -> None:
    record_property("matrix", (row.source, "at-start"))
    clock = MovedClock()
    cloud, _ = simulated(row.cloud, clock)
    async with TestServer(cloud.app) as server:
        url = str(server.make_url("")).rstrip("/")
        if row.source == "gcp/maintenance":
            # GCE skips the warning where nobody has asked before; here an earlier daemon has.
            for source in OPEN[row.cloud](session, url, clock, PATIENT):
                await source.probe()
        cloud.actions[row.action]()
        opened = OPEN[row.cloud](session, url, clock, PATIENT)
        (source,) = [source for source in opened if source.name == row.source]
        async with watching(source) as hearing:
            assert await hearing.until(Noticed) == 0


@EACH
async def test_what_is_taken_back_is_cancelled_once_under_its_own_id(
    session: aiohttp.ClientSession, record_property: Record, row: Row
) -> None:
    record_property("matrix", (row.source, "cancel"))
    clock = MovedClock()
    cloud, _ = simulated(row.cloud, clock)
    async with TestServer(cloud.app) as server:
        url = str(server.make_url("")).rstrip("/")
        opened = OPEN[row.cloud](session, url, clock, PATIENT)
        (source,) = [source for source in opened if source.name == row.source]
        async with watching(source) as hearing:
            await hearing.until(Quiet)
            cloud.actions[row.action]()
            noticed = await hearing.until(Noticed)
            cloud.actions["clear"]()
            gone = await hearing.until(Cancelled, after=noticed)
            cloud.actions[row.action]()
            await hearing.until(Noticed, after=gone)

    told = hearing.told[noticed]
    assert isinstance(told, Noticed)
    cancelled = [probe for probe in hearing.told if isinstance(probe, Cancelled)]
    assert [(probe.source, probe.id) for probe in cancelled] == [(row.source, told.notice.id)]


async def test_a_hanging_get_that_ends_with_the_same_etag_is_no_news(
    session: aiohttp.ClientSession, record_property: Record
) -> None:
    rows = [row for row in ROWS if row.cloud == "gcp"]
    for row in rows:
        record_property("matrix", (row.source, "etag-same"))
    clock = MovedClock()
    cloud, _ = simulated("gcp", clock)
    asked = Asked()
    cloud.fault = asked
    async with TestServer(cloud.app) as server, AsyncExitStack() as watches:
        url = str(server.make_url("")).rstrip("/")
        sources = OPEN["gcp"](session, url, clock, PATIENT)
        for source, row in zip(sources, rows, strict=True):
            assert await source.probe() == Quiet(row.source)
            cloud.actions[row.action]()
        heard = [await watches.enter_async_context(watching(source)) for source in sources]
        # All of them hang, end unchanged, and hang again.
        await asked.until(hanging=2 * len(rows))
        told = [list(hearing.told) for hearing in heard]
        cloud.actions["clear"]()
        for hearing in heard:
            await hearing.until(Cancelled)

    for row, probes in zip(rows, told, strict=True):
        (probe,) = set(probes)
        assert isinstance(probe, Noticed)
        assert probe.notice.source == row.source


@OF_AWS
async def test_tokens_that_live_a_second_leave_no_question_unanswered(
    session: aiohttp.ClientSession, record_property: Record, row: Row
) -> None:
    record_property("matrix", (row.source, "token-ttl-1s"))
    clock = MovedClock()
    ec2 = AwsMetadata(clock=clock)
    async with TestServer(ec2.app) as server:
        client = aws.aws_client(session, str(server.make_url("")).rstrip("/"), limits=PATIENT)
        opened = aws.sources(client, clock, ttl_seconds=1, jitter=lambda: 0.0)
        (source,) = [source for source in opened if source.name == row.source]
        told: list[type[Probe]] = []
        for round in range(20):
            if round == 10:
                ec2.actions[row.action]()
            told.append(type(await source.probe()))
            clock.now += 0.3

    assert told == [Quiet] * 10 + [Noticed] * 10
    assert not ec2.wrongs


def _cure(probe: Probe) -> str:
    return probe.cure if isinstance(probe, Unknown) else ""


@OF_AWS
async def test_a_put_into_a_black_hole_is_unknown_and_names_the_hop_limit(
    session: aiohttp.ClientSession, record_property: Record, row: Row
) -> None:
    record_property("matrix", (row.source, "put-black-hole"))
    clock = MovedClock()
    cloud, faults = simulated("aws", clock)
    faults.add(parse("never@api/token"))
    async with TestServer(cloud.app) as server:
        url = str(server.make_url("")).rstrip("/")
        limits = Limits(connect=10.0, read=0.3)
        opened = OPEN["aws"](session, url, clock, limits)
        (source,) = [source for source in opened if source.name == row.source]
        async with watching(source) as hearing:
            at = await hearing.until(Unknown)
            # On a busy machine GET, too, may be too slow once.
            while "hop limit" not in _cure(hearing.told[at]):
                at = await hearing.until(Unknown, after=at + 1)
            faults.clear()
            cloud.actions[row.action]()
            clock.now += 3600.0
            await hearing.until(Noticed, after=at)


# --- the table itself -------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted({one.file for one in filled()}))
def test_what_fills_a_cell_elsewhere_exists(file: str) -> None:
    text = (HERE / "notice" / file).read_text()

    assert {one.test for one in filled() if one.file == file} <= functions_of(text)
    # An id is written in the file, alone or as one value of several.
    given = {one.given for one in filled() if one.file == file and one.given}
    assert [each for each in given if f'"{each}"' not in text and f"({each}," not in text] == []


def test_the_table_knows_its_rows_and_columns() -> None:
    assert tuple(row.source for row in ROWS) == CLOUDS
    assert {one.cell[0] for one in filled()} <= {*SOURCES}
    assert {one.cell[1] for one in filled()} <= {*COLUMNS}
    assert {*OTHERS} <= {one.cell[0] for one in filled()}
