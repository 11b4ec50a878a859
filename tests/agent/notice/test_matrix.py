"""Every source against every fault, on the real simulators: the table at the end of the run.

One cell is one life of a source: it answers, then meets the fault, is announced something, meets
the fault again, and hears truly again. A fault neither fires nor clears, but where the protocol
itself says so: what is absent (404) where absence is how nothing is announced.
"""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evacd.clock import Clock
from evacd.facts import Cancelled, Noticed, Probe, Quiet, Unknown
from evacd.notice import Source, aws, azure, gcp
from evacd.notice.longpoll import Pace
from evacd.notice.metadata import Limits
from evacd.notice.simulate.aws import AwsMetadata
from evacd.notice.simulate.azure import MACHINE, AzureMetadata
from evacd.notice.simulate.cloud import Cloud
from evacd.notice.simulate.faults import Faults, parse
from evacd.notice.simulate.gcp import GcpMetadata
from tests.agent.notice.cells import column_of
from tests.agent.notice.hearing import MovedClock, raw_server, saying, watching

PATIENT = Limits(connect=10.0, read=10.0)
# Where silence is the point; an answer that is true but late is waited for all the same.
QUICK = Limits(connect=0.1, read=0.1)

# --- the rows ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One source: whose, and what makes it speak."""

    source: str
    action: str

    @property
    def cloud(self) -> str:
        return self.source.partition("/")[0]


ROWS = (
    Row("gcp/preempted", "preempt"),
    Row("gcp/maintenance", "maintenance"),
    Row("gcp/upcoming-maintenance", "upcoming"),
    Row("gcp/stop", "stop"),
    Row("aws/spot", "preempt"),
    Row("aws/rebalance", "rebalance"),
    Row("aws/maintenance", "maintenance"),
    Row("aws/asg", "asg-terminate"),
    Row("azure", "preempt"),
)

Open = Callable[[aiohttp.ClientSession, str, Clock, Limits], tuple[Source, ...]]


def open_gcp(
    session: aiohttp.ClientSession, url: str, clock: Clock, limits: Limits
) -> tuple[Source, ...]:
    return gcp.sources(
        gcp.gcp_client(session, url, limits=limits),
        clock,
        gpu=True,
        uptime=lambda: 3600.0,
        upcoming_poll_seconds=0.02,
        hold_seconds=1.0,
        pace=Pace(poll=0.02, backoff_first=0.005, backoff_most=0.02),
        jitter=lambda: 0.0,
    )


def open_aws(
    session: aiohttp.ClientSession, url: str, clock: Clock, limits: Limits
) -> tuple[Source, ...]:
    client = aws.aws_client(session, url, limits=limits)
    return aws.sources(client, clock, period=0.02, jitter=lambda: 0.0)


def open_azure(
    session: aiohttp.ClientSession, url: str, clock: Clock, limits: Limits
) -> tuple[Source, ...]:
    return azure.sources(
        session,
        clock,
        url=url,
        machine=MACHINE,
        period=0.02,
        patient=limits,
        prompt=limits,
        jitter=lambda: 0.0,
    )


OPEN: Mapping[str, Open] = MappingProxyType({"gcp": open_gcp, "aws": open_aws, "azure": open_azure})


def simulated(cloud: str, clock: Clock) -> tuple[Cloud, Faults]:
    """A machine of that cloud, and what is wrong with it: nothing yet."""
    made: Cloud
    match cloud:
        case "gcp":
            made = GcpMetadata()
        case "aws":
            made = AwsMetadata()
        case _:
            made = AzureMetadata(clock=clock, rate=None)
    faults = Faults(echo=getattr(made, "echo", {}))
    faults.attach(made.app)
    made.fault = faults
    return made, faults


# --- the columns ------------------------------------------------------------------------

STATUS = ("301", "400", "401", "403", "404", "410", "429", "500", "503")
BODIES = ("html", "redirect", "empty", "malformed", "garbage", "too-large", "truncated", "reset")
SILENT = ("drip", "never")
TRUE = ("slow", "no-etag")
HANGING = ("hang-503", "hang-never")
COLUMNS = (*STATUS, *BODIES, *SILENT, *TRUE, "no-flavor", *HANGING)
TO_SAY = {**{status: f"status={status}" for status in STATUS}, "slow": "slow=0.01"}

# Where a fault says, in the protocol's own words, that nothing is announced (any more).
ABSENT = {("gcp/stop", "404"), *((row.source, "404") for row in ROWS if row.cloud == "aws")}
# Where it says that nothing is known, which takes nothing back.
NOT_KNOWN = {("gcp/upcoming-maintenance", "404"), ("gcp/upcoming-maintenance", "503")}


def applies(row: Row, column: str) -> bool:
    """Only GCE echoes a header, has ETags and holds an answer back."""
    return row.cloud == "gcp" or column not in {"no-etag", "no-flavor", *HANGING}


def expected(row: Row, column: str, *, announced: bool) -> type[Probe]:
    """What the source says while it meets the fault."""
    cell = row.source, column
    if column in TRUE:
        return Noticed if announced else Quiet
    if cell in ABSENT:
        return Cancelled if announced else Quiet
    if cell in NOT_KNOWN and not announced:
        return Quiet
    return Unknown


# Tells the table at the end where a test stands; `conftest.py` draws it.
Record = Callable[[str, object], None]

# --- the cells --------------------------------------------------------------------------


async def answered(source: Source, clock: MovedClock) -> Probe:
    """The first answer that means anything; a busy machine may need more than one try."""
    for _ in range(50):
        probe = await source.probe()
        if not isinstance(probe, Unknown):
            return probe
        clock.now += 60.0
    raise AssertionError(probe)


CELLS = [
    pytest.param(row, column, id=f"{row.source}-{column}")
    for row in ROWS
    for column in COLUMNS
    if applies(row, column) and column not in HANGING
]


@pytest.mark.parametrize(("row", "column"), CELLS)
async def test_a_fault_neither_fires_nor_clears(
    session: aiohttp.ClientSession, record_property: Record, row: Row, column: str
) -> None:
    record_property("matrix", (row.source, column))
    clock = MovedClock()
    cloud, faults = simulated(row.cloud, clock)
    fault = parse(TO_SAY.get(column, column))
    async with TestServer(cloud.app) as server:
        url = str(server.make_url("")).rstrip("/")
        limits = QUICK if column in SILENT else PATIENT
        opened = OPEN[row.cloud](session, url, clock, limits)
        (source,) = [source for source in opened if source.name == row.source]
        assert await answered(source, clock) == Quiet(row.source)

        faults.add(fault)
        assert type(await source.probe()) is expected(row, column, announced=False)
        faults.clear()
        clock.now += 60.0

        cloud.actions[row.action]()
        first = await answered(source, clock)
        assert isinstance(first, Noticed)

        faults.add(fault)
        during = await source.probe()
        assert type(during) is expected(row, column, announced=True)
        faults.clear()

        again = await answered(source, clock)
        assert isinstance(again, Noticed)
        assert again.notice.id == first.notice.id
        assert again == first or isinstance(during, Cancelled)


HANGING_CELLS = [
    pytest.param(row, column, id=f"{row.source}-{column}")
    for row in ROWS
    for column in HANGING
    if applies(row, column)
]


@pytest.mark.parametrize(("row", "column"), HANGING_CELLS)
async def test_a_notice_is_heard_where_hanging_gets_fail(
    session: aiohttp.ClientSession, record_property: Record, row: Row, column: str
) -> None:
    record_property("matrix", (row.source, column))
    clock = MovedClock()
    cloud, faults = simulated(row.cloud, clock)
    faults.add(parse(column))
    async with TestServer(cloud.app) as server:
        url = str(server.make_url("")).rstrip("/")
        limits = Limits(connect=10.0, read=10.0, hang_slack=0.1)
        opened = OPEN[row.cloud](session, url, clock, limits)
        (source,) = [source for source in opened if source.name == row.source]
        async with watching(source) as hearing:
            await hearing.until(Quiet)
            cloud.actions[row.action]()
            await hearing.until(Noticed)

    # Nothing but the one event, however often it was told.
    assert len({probe.notice for probe in hearing.told if isinstance(probe, Noticed)}) == 1
    assert not [probe for probe in hearing.told if isinstance(probe, Cancelled)]


# --- odd data ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Odd:
    """What a source says of an announcement that is odd, or only often repeated.

    Attributes:
        announce: Makes it.
        first: What is said of it.
        seconds: From its first sight to its deadline; None for no deadline.
        again: Done before each further read.
    """

    source: str
    column: str
    announce: Callable[[Cloud], None]
    first: type[Probe] = Noticed
    seconds: float | None = None
    again: Callable[[Cloud], None] = lambda _: None


def act(*names: str) -> Callable[[Cloud], None]:
    """These actions, in this order."""

    def announce(cloud: Cloud) -> None:
        for name in names:
            cloud.actions[name]()

    return announce


def azure_in_a_day(cloud: Cloud) -> None:
    assert isinstance(cloud, AzureMetadata)
    cloud.schedule("Preempt", seconds=86_400.0)


def azure_scheduled(type: str, date: str) -> Callable[[Cloud], None]:
    """One that has not started, with whatever stands for its date."""
    event = {"EventId": "1", "EventType": type, "EventStatus": "Scheduled", "NotBefore": date}
    document = {"DocumentIncarnation": 2, "Events": [{**event, "Resources": [MACHINE]}]}

    async def say(request: web.Request) -> web.StreamResponse | None:
        return web.json_response(document) if "scheduledevents" in request.path else None

    def announce(cloud: Cloud) -> None:
        cloud.fault = say

    return announce


# Seconds; of a preemption, what is assumed for it.
AZURE_LEAST = {"Preempt": 10.0, "Terminate": 300.0, "Redeploy": 600.0, "Reboot": 900.0}


def azure_moves(cloud: Cloud) -> None:
    assert isinstance(cloud, AzureMetadata)
    for event in cloud.events:
        cloud.move(event.id, seconds=25.0)


UPCOMING, SPOT, EVENTS = "gcp/upcoming-maintenance", "aws/spot", "aws/maintenance"
ODD = (
    Odd("gcp/preempted", "x60", act("preempt"), seconds=30.0),
    Odd("gcp/maintenance", "x60", act("maintenance"), seconds=3600.0),
    Odd("gcp/maintenance", "unknown-word", act("maintenance-unknown")),
    Odd(UPCOMING, "x60", act("upcoming"), seconds=3600.0),
    Odd(UPCOMING, "past", act("upcoming-past"), seconds=0.0),
    Odd(UPCOMING, "+24h", act("upcoming-day"), seconds=86_400.0),
    Odd(UPCOMING, "moving", act("upcoming-moving"), seconds=3600.0),
    Odd(UPCOMING, "blank", act("upcoming-blank"), first=Unknown),
    Odd(UPCOMING, "garbled", act("upcoming-garbled"), first=Unknown),
    Odd("gcp/stop", "x60", act("stop"), seconds=30.0),
    Odd("gcp/stop", "unknown-word", act("stop-unknown")),
    Odd(SPOT, "x60", act("preempt"), seconds=120.0),
    Odd(SPOT, "past", act("preempt-past"), seconds=0.0),
    Odd(SPOT, "+24h", act("preempt-day"), seconds=120.0),
    Odd(SPOT, "moving", act("preempt-moving"), seconds=120.0),
    Odd(SPOT, "blank", act("preempt-blank"), seconds=0.0),
    Odd(SPOT, "garbled", act("preempt-garbled"), seconds=0.0),
    Odd(SPOT, "unknown-word", act("preempt-unknown"), seconds=120.0),
    Odd("aws/rebalance", "x60", act("rebalance")),
    Odd(EVENTS, "x60", act("maintenance"), seconds=3600.0),
    Odd(EVENTS, "past", act("maintenance-past"), seconds=0.0),
    Odd(EVENTS, "unknown-word", act("maintenance-unknown"), seconds=3600.0),
    Odd("aws/asg", "x60", act("asg-terminate"), seconds=30.0),
    Odd("aws/asg", "unknown-word", act("asg-unknown")),
    # Assumed to be ten seconds, whatever longer time is said.
    Odd("azure", "x60", act("preempt"), seconds=10.0),
    Odd("azure", "+24h", azure_in_a_day, seconds=10.0),
    Odd("azure", "moving", act("preempt"), seconds=10.0, again=azure_moves),
    Odd("azure", "blank", act("preempt", "start"), seconds=0.0),
    *(
        Odd("azure", f"blank-{type.lower()}", azure_scheduled(type, ""), seconds=0.0)
        for type in ("Preempt", "Terminate", "Redeploy", "Reboot")
    ),
    *(
        Odd("azure", f"garbled-{type.lower()}", azure_scheduled(type, "soon"), seconds=seconds)
        for type, seconds in AZURE_LEAST.items()
    ),
    Odd("azure", "unknown-word", act("unknown")),
    Odd("azure", "other-vm", act("other-vm"), first=Quiet),
)
# Dates and the services' own clocks have whole seconds.
COARSE = 4.0


@pytest.mark.parametrize("odd", [pytest.param(o, id=f"{o.source}-{o.column}") for o in ODD])
async def test_what_is_announced_oddly_is_one_notice_whose_deadline_never_grows(
    session: aiohttp.ClientSession, record_property: Record, odd: Odd
) -> None:
    record_property("matrix", (odd.source, column_of(odd.column)))
    clock = MovedClock()
    cloud, _ = simulated(odd.source.partition("/")[0], clock)
    async with TestServer(cloud.app) as server:
        url = str(server.make_url("")).rstrip("/")
        opened = OPEN[odd.source.partition("/")[0]](session, url, clock, PATIENT)
        (source,) = [source for source in opened if source.name == odd.source]
        assert await answered(source, clock) == Quiet(odd.source)
        odd.announce(cloud)
        seen, told = clock.now, [await source.probe()]
        for _ in range(59):
            clock.now += 0.1
            odd.again(cloud)
            told.append(await source.probe())

    assert {type(probe) for probe in told} == {odd.first}
    notices = [probe.notice for probe in told if isinstance(probe, Noticed)]
    assert len({notice.id for notice in notices}) == (odd.first is Noticed)
    deadlines = [notice.deadline for notice in notices]
    if odd.seconds is None:
        assert set(deadlines) <= {None}
        return
    assert [at for at in deadlines if at is None] == []
    left = [at - seen for at in deadlines if at is not None]
    assert left[0] == pytest.approx(odd.seconds, abs=COARSE)
    assert left[0] >= 0
    assert left == sorted(left, reverse=True)


# --- what is told of an answer is for people --------------------------------------------


@pytest.mark.parametrize("row", [pytest.param(row, id=row.source) for row in ROWS])
async def test_what_stands_in_a_header_can_be_written_wherever_it_is_told(
    session: aiohttp.ClientSession, record_property: Record, row: Row
) -> None:
    record_property("matrix", (row.source, "raw-location"))
    raw = b"Location: http://\xff\xfe\x1b[31m" + b"x" * 4000 + b"\r\n"
    talk = b"HTTP/1.1 302 No\r\n" + raw + b"Content-Length: 0\r\n\r\n"
    async with raw_server(saying(talk)) as url:
        opened = OPEN[row.cloud](session, url, MovedClock(), PATIENT)
        (source,) = [source for source in opened if source.name == row.source]
        probe = await source.probe()

    assert isinstance(probe, Unknown)
    assert "redirect" in probe.reason
    assert probe.reason.isprintable()
    assert len(probe.reason) <= 200
    assert probe.reason.encode()


# --- nobody there -----------------------------------------------------------------------


@pytest.mark.parametrize("row", [pytest.param(row, id=row.source) for row in ROWS])
async def test_where_nobody_answers_it_is_unknown_and_says_what_to_do(
    session: aiohttp.ClientSession, record_property: Record, row: Row
) -> None:
    record_property("matrix", (row.source, "refused"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        opened = OPEN[row.cloud](session, url, MovedClock(), PATIENT)
        (source,) = [source for source in opened if source.name == row.source]
        probe = await source.probe()

    assert isinstance(probe, Unknown)
    assert "Connection refused" in probe.reason
    assert probe.cure
