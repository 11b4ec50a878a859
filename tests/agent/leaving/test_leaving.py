"""Cordons and departures as one: what is told and noted over orders, cancels and restarts."""

import asyncio
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from evac import incident
from evac.generation import Generation
from evacd.facts import Cancelled, Confidence, Kept, Lost, Notice, Noticed, Order, Quiet, Step
from evacd.leaving import Leaving
from evacd.rendezvous import Departure, Word
from evacd.report.journal import Journal
from evacd.report.standing import OperatorDrain, Ordered, Standing
from evacd.report.standing_file import StandingFile

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
ORDER = Order("o1", 1030.0, Confidence.CERTAIN, "gcp", "preempted", given=1000.0)
NOTICE = Notice("gcp", "preempted", "gcp:preempted", Confidence.CERTAIN, 1030.0, seen=1000.0)
DRAIN = Notice("operator", "drain", "operator:1", Confidence.CERTAIN, 1600.0, 1000.0, "broken fan")
GENERATION = Generation(incarnation=1, step=7)
STEP = Step("alice/gpt", "file:///s", GENERATION, 10, 1000.0, 1001.0)
CLOSED = Standing(
    "b1", Ordered("o0", "gcp", "preempted", Confidence.CERTAIN, NOON), ("command",), ("alice/gpt",)
)


class HandClock:
    """Moves when told."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return NOON + timedelta(seconds=self.now - 1000.0)


class Command:
    """A cordon that knows whether it is closed."""

    name = "command"

    def __init__(self, file: StandingFile) -> None:
        self.done: list[tuple[str, str]] = []
        self.found: Standing | None = None
        self._file = file

    async def close(self, order: Order, *, seconds_left: float) -> str | None:
        self.found = self._file.load()
        self.done.append(("close", order.id))
        return None

    async def reopen(self, order: Order, *, reason: str) -> str | None:
        self.done.append(("reopen", reason))
        return None


class Mailbox:
    """An announcer that everything reaches."""

    name = "mailbox"

    def __init__(self) -> None:
        self.got: list[Departure] = []

    def concerns(self, departure: Departure) -> bool:
        return True

    async def announce(self, departure: Departure) -> str | None:
        self.got.append(departure)
        return None

    @property
    def words(self) -> list[tuple[Word, str]]:
        return [(each.word, each.job) for each in self.got]


class Node:
    """What a daemon of this node has, as often as it is started."""

    def __init__(self, home: Path) -> None:
        self.clock = HandClock()
        self.journal_path = home / "incidents.sqlite"
        self.journal = Journal(self.journal_path, self.clock)
        self.file = StandingFile(home / "standing.json", self.clock)
        self.command = Command(self.file)
        self.mailbox = Mailbox()
        self.counted: list[str] = []

    @asynccontextmanager
    async def daemon(self, boot: str = "b1", *, cordons: bool = True) -> AsyncIterator[Leaving]:
        """A daemon that is at rest when the block has ended."""
        async with TaskGroup() as beside:
            leaving = Leaving(
                cordons=[self.command] if cordons else [],
                announcers=[self.mailbox],
                journal=self.journal,
                file=self.file,
                clock=self.clock,
                node="gpu-7",
                boot=boot,
                beside=beside,
                count=lambda name, _: self.counted.append(name),
            )
            yield leaving
            await leaving.settled()
        await self.file.written(within=30.0)
        await self.journal.settled()

    async def left(self, standing: Standing) -> None:
        """What an earlier daemon left behind."""
        self.file.put(standing)
        await self.file.written(within=30.0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.file.stop()
    node.journal.stop()


async def test_it_is_on_the_disk_before_the_cordon_is_closed(node: Node) -> None:
    async with node.daemon() as leaving:
        leaving.begin(ORDER)

    assert node.command.found is not None
    assert node.command.found.closed == ("command",)
    assert node.command.found.order == Ordered("o1", "gcp", "preempted", ORDER.confidence, NOON)


async def test_leaving_says_what_goes_where(node: Node) -> None:
    async with node.daemon() as leaving:
        leaving.announce(ORDER, {"alice/gpt": STEP, "bob/eval": None})

    gpt, other = node.mailbox.got
    assert (gpt.job, gpt.generation, gpt.store) == ("alice/gpt", GENERATION, "file:///s")
    assert (other.job, other.generation, other.store) == ("bob/eval", None, "")
    assert gpt.seconds_left == 30.0


async def test_with_nobody_on_board_the_node_alone_leaves_and_stays(node: Node) -> None:
    async with node.daemon() as leaving:
        leaving.announce(ORDER, {})
        await leaving.settled()
        leaving.stay(ORDER, "cancelled")

    assert node.mailbox.words == [(Word.LEAVING, ""), (Word.STAYING, "")]


async def test_whoever_was_told_of_the_leaving_hears_of_the_staying(node: Node) -> None:
    async with node.daemon() as leaving:
        leaving.announce(ORDER, {"gone/since": None})
        await leaving.settled()
        leaving.stay(ORDER, "cancelled", ["came/since"])

    assert node.mailbox.words[1:] == [(Word.STAYING, "gone/since"), (Word.STAYING, "came/since")]


@pytest.mark.parametrize(
    ("outcome", "word", "store", "reason"),
    [
        (Kept("j", GENERATION, 1, 1.0, durable=True, store="s3://b"), Word.DURABLE, "s3://b", ""),
        (Kept("j", GENERATION, 1, 1.0, durable=False, store="s3://b"), Word.WRITTEN, "s3://b", ""),
        (Lost("j", "disk full"), Word.LOST, "", "disk full"),
    ],
)
async def test_an_outcome_has_its_word(
    node: Node, outcome: Kept | Lost, word: Word, store: str, reason: str
) -> None:
    async with node.daemon() as leaving:
        leaving.ended(ORDER, outcome)

    (said,) = node.mailbox.got
    assert (said.word, said.job, said.store, said.reason) == (word, "j", store, reason)


async def test_sequences_rise_over_restarts(node: Node) -> None:
    for _ in range(3):
        async with node.daemon() as leaving:
            leaving.announce(ORDER, {"a": None})
            leaving.announce(ORDER, {"b": None})
        node.clock.now += 1.0

    sequences = [each.sequence for each in node.mailbox.got]
    assert sequences == sorted(set(sequences))
    # JSON's numbers are exact so far.
    assert max(sequences) < 2**53


async def test_all_that_ends_is_recorded_and_counted(node: Node) -> None:
    node.journal.open(ORDER, NOTICE, node="gpu-7", boot="b1")
    async with node.daemon() as leaving:
        leaving.begin(ORDER)
        leaving.announce(ORDER, {"a": None})
        await leaving.settled()
        leaving.stay(ORDER, "cancelled")

    (found,) = incident.load(node.journal_path)
    names = sorted(event.name for event in found.events)
    assert names == sorted(node.counted)
    assert names == [
        "cordon.closed", "cordon.reopened", "departure.announced", "departure.announced",
    ]  # fmt: skip


async def test_the_earlier_deadline_of_a_drain_is_kept(node: Node) -> None:
    async with node.daemon() as leaving:
        leaving.drained(DRAIN)
        leaving.drained(replace(DRAIN, deadline=9000.0))
        await node.file.written(within=30.0)
        longer = node.file.load()
        leaving.drained(replace(DRAIN, deadline=1060.0))
    shorter = node.file.load()

    assert longer
    assert longer.drain
    assert longer.drain.deadline == 1600.0
    assert shorter
    assert shorter.drain == OperatorDrain("operator:1", 1060.0, "broken fan")


@pytest.mark.parametrize("deadline", [1e12, 1e300])
async def test_a_drain_without_end_is_kept(node: Node, deadline: float) -> None:
    async with node.daemon() as leaving:
        leaving.drained(replace(DRAIN, deadline=deadline))

    assert (found := node.file.load())
    assert found.drain


class TestStart:
    async def test_on_a_new_node_nothing_happens(self, node: Node) -> None:
        async with node.daemon() as leaving:
            assert leaving.resume() is None
            assert not leaving.holds

        assert node.command.done == []

    async def test_after_a_reboot_what_we_closed_is_opened(self, node: Node) -> None:
        await node.left(CLOSED)
        async with node.daemon("b2") as leaving:
            assert leaving.resume() is None

        assert node.command.done == [("reopen", "the node has booted again")]
        assert (found := node.file.load())
        assert (found.boot, found.closed) == ("b2", ())
        assert node.mailbox.got == []

    async def test_a_drain_is_given_back(self, node: Node) -> None:
        drain = OperatorDrain("operator:1", 1060.0, "broken fan")
        await node.left(replace(CLOSED, drain=drain))
        async with node.daemon() as leaving:
            assert leaving.resume() == drain
            leaving.begin(ORDER)
            await leaving.settled()
            leaving.undrained()
            leaving.stay(ORDER, "cancelled")

        assert node.command.done == [("close", "o1"), ("reopen", "cancelled")]
        assert node.mailbox.words == [(Word.STAYING, "alice/gpt")]
        assert (found := node.file.load())
        assert (found.closed, found.told, found.drain) == ((), (), None)

    async def test_a_clouds_order_is_held_until_it_is_let_go(self, node: Node) -> None:
        await node.left(CLOSED)
        async with node.daemon() as leaving:
            assert leaving.resume() is None
            assert leaving.holds
            await leaving.settled()
            assert node.command.done == []
            leaving.let_go("all is calm")
            assert not leaving.holds

        assert node.command.done == [("reopen", "all is calm")]
        assert node.mailbox.words == [(Word.STAYING, "alice/gpt")]

    async def test_an_order_ends_the_holding(self, node: Node) -> None:
        await node.left(CLOSED)
        async with node.daemon() as leaving:
            leaving.resume()
            leaving.begin(ORDER)
            assert not leaving.holds
            leaving.let_go()

        assert node.command.done == [("close", "o1")]

    async def test_a_stop_while_holding_forgets_nothing(self, node: Node) -> None:
        await node.left(CLOSED)
        for _ in range(2):
            async with node.daemon() as leaving:
                leaving.resume()
                assert leaving.holds

        assert node.file.load() == CLOSED

    async def test_a_cordon_that_is_no_longer_configured_is_told_of_and_remembered(
        self, node: Node
    ) -> None:
        await node.left(CLOSED)
        with capture_logs() as logs:
            async with node.daemon(cordons=False) as leaving:
                leaving.resume()
                leaving.let_go()

        assert [log["by"] for log in logs if log["event"] == "cordon.unknown"] == ["command"]
        assert (found := node.file.load())
        assert found.closed == ("command",)

    async def test_it_goes_on_in_the_incident_of_before(self, node: Node) -> None:
        node.journal.open(replace(ORDER, id="o0"), NOTICE, node="gpu-7", boot="b1")
        await node.journal.settled()
        node.clock.now += 60.0
        # Another daemon has another journal on the same file.
        node.journal.stop()
        node.journal = Journal(node.journal_path, node.clock)
        await node.left(CLOSED)
        async with node.daemon() as leaving:
            leaving.resume()
            leaving.let_go()

        (found,) = incident.load(node.journal_path)
        assert [(e.name, e.at) for e in found.events if e.name.startswith("cordon")] == [
            ("cordon.reopened", 60.0)
        ]


AGAIN = replace(NOTICE, seen=1008.0, deadline=1038.0)


class TestItsNotices:
    async def ordered(self, node: Node) -> None:
        """An earlier daemon gave an order for a notice, and was killed 8 s later."""
        async with node.daemon() as leaving:
            assert leaving.recall(Noticed(NOTICE)) == Noticed(NOTICE)
            leaving.begin(ORDER)
            leaving.keep([NOTICE])
        node.clock.now += 8.0

    async def test_a_restart_gives_it_no_more_time_and_its_order_goes_on(self, node: Node) -> None:
        await self.ordered(node)
        async with node.daemon() as leaving:
            leaving.resume()
            assert leaving.order_before is None
            assert leaving.recall(Noticed(AGAIN)) == Noticed(NOTICE)
            assert leaving.order_before == "o1"
            leaving.begin(ORDER)
            assert leaving.order_before is None
            # Its source tells it at each poll.
            assert leaving.recall(Noticed(AGAIN)) == Noticed(NOTICE)

    async def test_another_notice_gets_an_order_of_its_own(self, node: Node) -> None:
        await self.ordered(node)
        async with node.daemon() as leaving:
            leaving.resume()
            other = Noticed(replace(AGAIN, id="gcp:other"))
            assert leaving.recall(other) == other
            assert leaving.order_before is None

    @pytest.mark.parametrize("gone", [Cancelled("gcp", NOTICE.id), Quiet("gcp")])
    async def test_what_was_taken_back_comes_again_as_new(
        self, node: Node, gone: Cancelled | Quiet
    ) -> None:
        await self.ordered(node)
        async with node.daemon() as leaving:
            leaving.resume()
            leaving.recall(gone)
            leaving.keep([])
            assert leaving.recall(Noticed(AGAIN)) == Noticed(AGAIN)
            assert leaving.order_before is None
        assert (found := node.file.load())
        assert found.notices == ()

    async def test_what_was_undone_comes_again_as_new(self, node: Node) -> None:
        await self.ordered(node)
        async with node.daemon() as leaving:
            leaving.resume()
            leaving.stay(ORDER, "all is calm")
            assert leaving.recall(Noticed(AGAIN)) == Noticed(AGAIN)
        async with node.daemon() as leaving:
            leaving.resume()
            assert leaving.recall(Noticed(AGAIN)) == Noticed(AGAIN)

    async def test_a_cancelled_drain_is_forgotten_with_its_notice(self, node: Node) -> None:
        async with node.daemon() as leaving:
            leaving.drained(DRAIN)
            leaving.begin(ORDER)
            leaving.keep([DRAIN])
            leaving.undrained()
        assert (found := node.file.load())
        assert (found.drain, found.notices) == (None, ())

    async def test_a_source_that_is_silent_forgets_nothing(self, node: Node) -> None:
        await self.ordered(node)
        for _ in range(2):
            async with node.daemon() as leaving:
                leaving.resume()
                leaving.keep([])
                assert leaving.holds
        async with node.daemon() as leaving:
            leaving.resume()
            assert leaving.recall(Noticed(AGAIN)) == Noticed(NOTICE)

    @pytest.mark.parametrize("cordons", [True, False])
    async def test_over_reboots_it_is_known_what_the_machine_has_been_through(
        self, node: Node, cordons: bool
    ) -> None:
        await self.ordered(node)
        async with node.daemon("b2", cordons=cordons) as leaving:
            leaving.resume()
            assert leaving.over() == ()
            node.clock.now += 30.0
            assert leaving.over() == (NOTICE.id,)
            # Told again on this boot it is a notice of this boot.
            assert leaving.recall(Noticed(AGAIN)) == Noticed(AGAIN)
            leaving.drained(DRAIN)
            leaving.undrained()
        async with node.daemon("b3", cordons=cordons) as leaving:
            leaving.resume()
            assert leaving.over() == (NOTICE.id,)


async def test_at_the_end_of_the_daemon_nothing_is_left_running(node: Node) -> None:
    began = asyncio.Event()

    class Endless(Command):
        async def close(self, order: Order, *, seconds_left: float) -> str | None:
            began.set()
            await asyncio.Event().wait()
            return None

    node.command = Endless(node.file)

    async def serve() -> None:
        async with node.daemon() as leaving:
            leaving.begin(ORDER)

    async with TaskGroup() as tasks:
        serving = tasks.create_task(serve())
        await began.wait()
        serving.cancel()

    assert serving.cancelled()


class Remembering(Command):
    """It knows by itself under which boot it was closed."""

    async def amended(self, order: Order, *, seconds_left: float) -> str | None:
        return None

    async def emptied(
        self, order: Order, *, kept: int, lost: int, seconds_left: float
    ) -> str | None:
        return None

    async def left_over(self) -> str | None:
        return "b1"


class TestBootedAgain:
    """Only the node itself remembers that an earlier boot closed it."""

    @pytest.fixture(autouse=True)
    def remembering(self, node: Node) -> None:
        node.command = Remembering(node.file)

    async def found(self, leaving: Leaving) -> None:
        leaving.resume()
        async with asyncio.timeout(30):
            while not leaving.holds:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0)

    async def test_it_is_opened_when_all_is_calm(self, node: Node) -> None:
        async with node.daemon("b2") as leaving:
            await self.found(leaving)
            assert node.command.done == []
            leaving.let_go()

        assert node.command.done == [("reopen", "the node has booted again")]
        assert node.mailbox.got == []

    async def test_a_notice_of_the_new_boot_keeps_it_closed(self, node: Node) -> None:
        async with node.daemon("b2") as leaving:
            await self.found(leaving)
            leaving.begin(ORDER)
            leaving.let_go()

        assert node.command.done == [("close", "o1")]

    async def test_a_source_that_never_answers_keeps_it_closed_for_two_minutes(
        self, node: Node
    ) -> None:
        async with node.daemon("b2") as leaving:
            await self.found(leaving)
            node.clock.now += 119.0
            assert not leaving.overdue
            node.clock.now += 1.0
            assert leaving.overdue
            leaving.let_go()
            assert not leaving.overdue
