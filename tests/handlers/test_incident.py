"""The record of an incident: read, judged and shown."""

import json
import math
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.errors import EvacError
from evac.incident import (
    APPLICATION_ID,
    SCHEMA,
    SCHEMA_VERSION,
    Ending,
    Event,
    Incident,
    JournalError,
    Summary,
    as_json,
    load,
    render,
    summary,
)

STORE = "file:///mnt/ckpt"


def e(at: float, event: str, /, **data: Any) -> Event:
    return Event(at, event, data)


def generation(step: int) -> dict[str, int]:
    return {"incarnation": 1, "step": step}


def step(unit: str, *, overtime: bool = False) -> dict[str, Any]:
    return {
        "unit": unit,
        "lane": STORE,
        "generation": generation(7),
        "nbytes": 4_000_000,
        "starts_in": 0.0,
        "ends_in": 2.0,
        "overtime": overtime,
    }


def incident(*events: Event, ended: float | None = None) -> Incident:
    return Incident(
        id="ab12-1",
        node="gpu-7",
        boot="b1",
        began="2026-11-29T16:40:12.500+00:00",
        source="gcp",
        kind="preempted",
        confidence="certain",
        window_seconds=30.0,
        ended=ended,
        events=events,
    )


SEEN = (
    e(
        0.0,
        "notice.seen",
        source="gcp",
        kind="preempted",
        confidence="certain",
        window_seconds=30.0,
    ),
    e(0.001, "order.given", order="ab12-1", confidence="certain", window_seconds=29.999, told=2),
)
PLANNED = e(0.002, "plan.made", steps=[step("alice/gpt")], given_up=[])
STARTED = e(
    0.003,
    "flush.started",
    unit="alice/gpt",
    lane=STORE,
    generation=generation(7),
    nbytes=4_000_000,
    priority=100,
)
FINISHED = e(
    2.0,
    "flush.finished",
    unit="alice/gpt",
    generation=generation(7),
    nbytes=4_000_000,
    seconds=2.0,
    durable=True,
)
COMMITTED = e(
    2.5,
    "commit.finished",
    unit="alice/gpt",
    generation=generation(7),
    store=STORE,
    durable=True,
)
LOST = e(1.0, "flush.lost", unit="alice/gpt", reason="disk full")


def ending(found: Summary, unit: str = "alice/gpt") -> Ending:
    return {one.unit: one.ending for one in found.units}[unit]


class TestSummary:
    def test_what_was_written_and_committed_is_kept_with_its_margin(self) -> None:
        found = summary(incident(*SEEN, PLANNED, STARTED, FINISHED, COMMITTED))

        (unit,) = found.units
        assert (unit.ending, unit.step, unit.nbytes, unit.priority) == (
            Ending.KEPT,
            7,
            4_000_000,
            100,
        )
        assert (unit.seconds, unit.finished, unit.margin) == (2.0, 2.5, 27.5)
        assert found.whole
        assert found.verdict == "1 of 1 workload kept, 4.00 MB, 27.5 s before the deadline"

    def test_what_was_durable_already_is_counted_beside_what_was_written(self) -> None:
        there = {"nbytes": 0, "seconds": 0.0, "store": STORE, "already": 62_900_000}
        finished = e(0.2, "flush.finished", unit="job", generation=generation(7), **there)

        found = summary(incident(*SEEN, finished, ended=1.0))

        assert found.units[0].already == 62_900_000
        assert "0 B and 62.9 MB that were durable already" in found.verdict

    def test_a_store_that_failed_is_one_try_and_the_next_one_counts(self) -> None:
        failed = e(1.0, "flush.failed", unit="alice/gpt", lane=STORE, reason="disk full")
        again = e(1.1, "flush.started", unit="alice/gpt", lane="s3://b", nbytes=4_000_000)

        (unit,) = summary(incident(*SEEN, PLANNED, STARTED, failed, again, FINISHED)).units

        assert (unit.ending, unit.reason) == (Ending.KEPT, "")
        assert [(one.ended, one.kept) for one in unit.tries] == [(1.0, False), (2.0, True)]

    def test_what_was_stopped_for_something_better_and_never_came_again_is_lost(self) -> None:
        stopped = e(1.0, "flush.stopped", unit="alice/gpt", lane=STORE, nbytes=7)

        (unit,) = summary(incident(*SEEN, PLANNED, STARTED, stopped, ended=30.0)).units

        assert unit.ending is Ending.LOST
        assert [(one.started, one.ended, one.kept) for one in unit.tries] == [(0.003, 1.0, False)]

    @pytest.mark.parametrize(
        ("store", "kind", "lacks"),
        [("evac://peer:7000", "full", "a peer's memory"), (STORE, "weights", "weights alone")],
    )
    def test_what_is_kept_but_not_for_good_says_so(self, store: str, kind: str, lacks: str) -> None:
        finished = Event(2.0, "flush.finished", {**FINISHED.data, "kind": kind})
        committed = Event(
            2.0,
            "commit.finished",
            {**COMMITTED.data, "durable": False, "store": store, "kind": kind},
        )

        (unit,) = summary(incident(*SEEN, PLANNED, STARTED, finished, committed)).units

        assert unit.ending is Ending.KEPT
        assert lacks in unit.reason

    def test_what_still_moves_when_the_record_ends_is_torn(self) -> None:
        found = summary(incident(*SEEN, PLANNED, STARTED))

        assert ending(found) is Ending.TORN
        assert found.verdict == "0 of 1 workload kept; 1 torn"
        assert not found.whole

    def test_what_moves_while_the_daemon_works_is_open(self) -> None:
        assert ending(summary(incident(*SEEN, PLANNED, STARTED), running=True)) is Ending.OPEN

    def test_what_was_not_reached_is_open_until_the_incident_is_closed(self) -> None:
        assert ending(summary(incident(*SEEN, PLANNED))) is Ending.OPEN
        assert ending(summary(incident(*SEEN, PLANNED, ended=40.0))) is Ending.LOST

    def test_what_failed_is_lost_with_its_reason(self) -> None:
        (unit,) = summary(incident(*SEEN, PLANNED, STARTED, LOST)).units

        assert (unit.ending, unit.reason) == (Ending.LOST, "disk full")

    def test_what_is_given_up_without_a_try_is_lost_with_the_plans_reason(self) -> None:
        given_up = [{"unit": "bob/eval", "reason": "nothing was staged"}]
        found = summary(incident(*SEEN, e(0.1, "plan.made", steps=[], given_up=given_up)))

        (unit,) = found.units
        assert (unit.ending, unit.reason) == (Ending.LOST, "nothing was staged")

    def test_what_is_given_up_but_tried_in_overtime_is_kept_if_it_arrives(self) -> None:
        late = e(
            0.1,
            "plan.made",
            steps=[step("alice/gpt", overtime=True)],
            given_up=[{"unit": "alice/gpt", "reason": "needs 41.2 s"}],
        )
        waiting = summary(incident(*SEEN, late))
        arrived = summary(
            incident(*SEEN, late, STARTED, e(33.0, "flush.finished", **FINISHED.data))
        )

        assert waiting.units[0].reason.startswith("needs 41.2 s; ")
        assert ending(arrived) is Ending.KEPT
        assert arrived.verdict.endswith("3.0 s after the deadline")

    def test_what_was_kept_stays_kept_when_a_newer_one_fails(self) -> None:
        again = e(5.0, "flush.started", unit="alice/gpt", generation=generation(8), nbytes=9)
        for more in ((again,), (again, e(6.0, "flush.lost", unit="alice/gpt", reason="full"))):
            (unit,) = summary(incident(*SEEN, PLANNED, STARTED, FINISHED, *more)).units

            assert (unit.ending, unit.step, unit.nbytes) == (Ending.KEPT, 7, 4_000_000)

    def test_a_newer_generation_that_arrives_takes_the_olders_place(self) -> None:
        again = e(5.0, "flush.started", unit="alice/gpt", generation=generation(8), nbytes=9)
        newer = e(6.0, "flush.finished", unit="alice/gpt", generation=generation(8), nbytes=9)
        (unit,) = summary(incident(*SEEN, STARTED, FINISHED, COMMITTED, again, newer)).units

        assert (unit.step, unit.finished) == (8, 6.0)

    def test_a_turn_is_kept_or_lost_by_its_own_word(self) -> None:
        given = e(1.0, "turn.given", unit="bob/eval", seconds=20.0, priority=10)
        good = e(4.0, "turn.finished", unit="bob/eval", ok=True, nbytes=5, seconds=3.0, reason="")
        bad = e(4.0, "turn.finished", unit="bob/eval", ok=False, nbytes=0, reason="no room")

        assert ending(summary(incident(given, good)), "bob/eval") is Ending.KEPT
        (unit,) = summary(incident(given, bad)).units
        assert (unit.ending, unit.reason) == (Ending.LOST, "no room")

    @pytest.mark.parametrize(("late", "ends"), [(True, Ending.LOST), (False, Ending.KEPT)])
    def test_who_is_asked_later_than_the_others_decides_and_who_is_asked_again_does_not(
        self, late: bool, ends: Ending
    ) -> None:
        given = e(1.0, "turn.given", unit="bob/eval", seconds=20.0)
        good = e(4.0, "turn.finished", unit="bob/eval", ok=True, nbytes=5, seconds=3.0, reason="")
        more = e(
            5.0, "turn.given", unit="bob/eval", seconds=20.0, **({"late": True} if late else {})
        )
        bad = e(6.0, "turn.finished", unit="bob/eval", ok=False, nbytes=0, reason="rank 1: left")

        assert ending(summary(incident(given, good, more, bad)), "bob/eval") is ends

    def test_a_part_whose_other_nodes_are_missing_says_so(self) -> None:
        part = e(2.5, "commit.finished", **{**COMMITTED.data, "durable": False})
        (unit,) = summary(incident(*SEEN, STARTED, FINISHED, part)).units

        assert unit.ending is Ending.KEPT
        assert not unit.durable
        assert "other nodes" in unit.reason

    def test_an_amended_order_moves_the_deadline(self) -> None:
        amended = e(5.0, "order.amended", confidence="started", window_seconds=9.999, told=2)
        found = summary(incident(*SEEN, amended, STARTED, FINISHED))

        assert found.deadline == pytest.approx(10.0)
        assert found.margin == pytest.approx(8.0)

    def test_a_withdrawn_order_loses_nothing(self) -> None:
        down = e(5.0, "order.stood_down", reason="cancelled by gcp")
        found = summary(incident(*SEEN, PLANNED, STARTED, down, ended=5.0))

        assert ending(found) is Ending.OPEN
        assert found.verdict.startswith("order withdrawn (cancelled by gcp): ")

    def test_with_nobody_on_board_nothing_is_lost(self) -> None:
        found = summary(incident(*SEEN))

        assert found.whole
        assert found.verdict == "nothing was on board, nothing was lost"

    def test_units_stand_by_priority(self) -> None:
        low = e(0.001, "flush.started", unit="bob/eval", nbytes=5, priority=1)
        found = summary(incident(low, STARTED))

        assert [unit.unit for unit in found.units] == ["alice/gpt", "bob/eval"]


# What JSON can hold, and what a hostile or future writer might put anywhere.
ODD = st.sampled_from(
    [
        None, True, False, 0, -1, 7, 10**12, 10**400, 2.5, math.nan, math.inf, -math.inf,
        "", "a", "b", "x" * 300, "two\nlines", "\x1b[2J", "\u202e", "\N{SNOWMAN}",
        [], [1, "a"], {}, {"step": 7, "incarnation": 1}, {"step": "seven"}, {"step": math.nan},
        [{"unit": "a", "overtime": True, "nbytes": 5}, {"unit": "b"}, {"unit": 3}, None],
        [{"unit": "a", "reason": "full"}, {"unit": ""}, {}],
    ]
)  # fmt: skip
KEYS = (
    "unit", "nbytes", "seconds", "generation", "reason", "steps", "given_up", "window_seconds",
    "durable", "ok", "priority", "name", "word", "job", "told", "rank", "pid", "store",
)  # fmt: skip
NAMES = (
    "notice.seen", "order.given", "order.amended", "order.stood_down", "plan.made",
    "flush.started", "flush.finished", "flush.lost", "turn.given", "turn.finished",
    "commit.finished", "cordon.closed", "cordon.failed", "cordon.reopened", "cordon.told",
    "departure.announced", "departure.failed", "workload.died", "workload.joined",
    "report.written", "something.new",
)  # fmt: skip
DATA = st.dictionaries(st.sampled_from(KEYS), ODD, max_size=8).flatmap(
    lambda data: st.sampled_from(["a", "b", 3]).map(lambda unit: {**data, "unit": unit})
)


class TestAnyRecord:
    @given(
        st.lists(st.builds(Event, st.floats(-1e6, 1e6), st.sampled_from(NAMES), DATA), max_size=12),
        st.none() | st.floats(0, 1e6),
        st.booleans(),
        st.integers(0, 200),
    )
    def test_whatever_the_journal_holds_it_is_judged_and_shown(
        self, events: list[Event], ended: float | None, running: bool, width: int
    ) -> None:
        one = incident(*events, ended=ended)
        shown = render(one, width=width, running=running)
        json.dumps(as_json(one, running=running))

        assert max(map(len, shown.split("\n"))) <= max(width, 68)
        assert all(c.isprintable() or c == "\n" for c in shown)
        colored = render(one, width=width, running=running, color=True)
        assert re.sub(r"\x1b\[\d*m", "", colored) == shown


WHOLE_STORY = incident(
    *SEEN,
    e(
        0.002,
        "plan.made",
        steps=[step("alice/gpt"), step("bob/eval"), step("carol/big", overtime=True)],
        given_up=[
            {"unit": "carol/big", "reason": "needs 52.3 s for 99.0 GB at 1.89 GB/s, 19.8 s are left"},
            {"unit": "dave/idle", "reason": "nothing was staged"},
        ],
    ),
    STARTED,
    e(0.05, "cordon.closed", name="command", seconds=0.048),
    e(0.07, "departure.announced", name="webhook", word="leaving", job="alice/gpt"),
    e(0.9, "workload.died", unit="alice/gpt", rank=1, pid=4711),
    FINISHED,
    COMMITTED,
    e(2.51, "turn.given", unit="bob/eval", seconds=27.4, priority=10),
    e(3.4, "departure.failed", name="webhook", word="leaving", job="bob/eval", reason="answered 503"),
    e(8.2, "turn.finished", unit="bob/eval", ok=True, nbytes=120_000_000, seconds=5.9, reason=""),
    e(8.21, "flush.started", unit="carol/big", generation=generation(9), nbytes=99 * 10**9),
)  # fmt: skip


class TestRender:
    def test_the_timeline_reads_as_people_would_tell_it(self) -> None:
        assert render(WHOLE_STORY) == EXPECTED.strip("\n")

    def test_colour_says_nothing_that_the_text_does_not(self) -> None:
        colored = render(WHOLE_STORY, color=True)

        assert "\x1b[32m" in colored
        assert re.sub(r"\x1b\[\d*m", "", colored) == render(WHOLE_STORY)

    def test_no_name_or_reason_writes_on_the_terminal(self) -> None:
        nasty = e(1.0, "flush.lost", unit="a\x1b[2Jb", reason="x\r\n\x07\u202ey\u009b31m")
        shown = render(incident(*SEEN, nasty))

        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "\u009b" not in shown

    def test_a_wait_for_a_planned_order_does_not_squeeze_the_picture(self) -> None:
        late = incident(
            e(3540.0, "flush.started", unit="a/b", nbytes=5),
            e(3570.0, "flush.finished", unit="a/b", nbytes=5, seconds=30.0),
        )
        late = Incident(**{**vars(late), "window_seconds": 3600.0})

        assert render(late).count("█") > 30

    def test_the_deadline_shows_across_a_bar_that_passes_it(self) -> None:
        shown = render(incident(*SEEN, STARTED, e(40.0, "flush.finished", **FINISHED.data)))

        assert "█│█" in shown

    @pytest.mark.parametrize(
        ("events", "mark"),
        [
            ((STARTED, FINISHED), "●"),
            ((STARTED, LOST), "✗"),
            ((STARTED,), "✗"),
            ((PLANNED, e(5.0, "order.stood_down", reason="cancelled")), "○"),
            ((STARTED, FINISHED, e(3.0, "flush.lost", unit="bob/eval", reason="full")), "▲"),
        ],
    )
    def test_the_last_line_is_the_verdict(self, events: tuple[Event, ...], mark: str) -> None:
        one = incident(*SEEN, *events)

        assert render(one, width=200).split("\n")[-1] == f"{mark} {summary(one).verdict}"


EXPECTED = """
ab12-1 on gpu-7                                          2026-11-29 16:40:12 UTC
gcp preempted, certain: 30.0 s to the deadline

  seconds  event             who        what
   +0.000  notice seen       gcp        preempted, certain, 30.0 s left
   +0.001  order given       node       certain, 2 processes told
   +0.002  plan made         node       2 in time, 1 in overtime, 1 given up
   +0.003  flush started     alice/gpt  step 7 to file        4.00 MB
   +0.050  cordon closed     command    no new work lands here, took 0.05 s
   +0.070  departure told    alice/gpt  webhook: leaving
   +0.900  workload died     alice/gpt  rank 1, pid 4711
   +2.000  flush finished    alice/gpt  step 7                4.00 MB  2.00 MB/s
   +2.500  commit finished   alice/gpt  whole, in file:///mnt/ckpt
   +2.510  turn given        bob/eval   may flush itself for 27.4 s
   +3.400  departure failed  bob/eval   webhook: leaving: answered 503
   +8.200  turn finished     bob/eval   by itself              120 MB  20.3 MB/s
   +8.210  flush started     carol/big  step 9                99.0 GB

alice/gpt  ████································································│
bob/eval   ·····█████████████··················································│
carol/big  ··················░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░│
dave/idle  ····································································│
           0 s                                                            30.0 s
           █ kept   ░ not kept   │ deadline

outcome   workload        step     bytes         took  margin left
kept      alice/gpt          7   4.00 MB        2.0 s       27.5 s
kept      bob/eval           -    120 MB        5.9 s       21.8 s
torn      carol/big          9   99.0 GB            -            -
          still being written when the record ends; no reader takes that as
          whole
lost      dave/idle          -         -            -            -
          nothing was staged

▲ 2 of 4 workloads kept, 124 MB, 21.8 s before the deadline; 1 lost, 1 torn
"""


def journal(
    path: Path, *, version: int = SCHEMA_VERSION, application: int = APPLICATION_ID
) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)
    for number in (1, 2, 3):
        connection.execute(
            "INSERT INTO incident VALUES (?, ?, 'n', 'b', 't', 'gcp', 'k', 'certain', 30, NULL)",
            (number, f"order-{number}"),
        )
        connection.executemany(
            "INSERT INTO event (incident, at, name, data) VALUES (?, ?, 'flush.lost', ?)",
            [(number, 1.0, '{"unit": "a/b"}'), (number, 2.0, "not json"), (number, 3.0, "[1]")],
        )
    connection.execute(f"PRAGMA application_id = {application}")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.commit()
    connection.close()


class TestLoad:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "odd name?#%20.sqlite"

    def test_the_last_ones_come_oldest_first(self, path: Path) -> None:
        journal(path)

        assert [one.id for one in load(path)] == ["order-3"]
        assert [one.id for one in load(path, last=2)] == ["order-2", "order-3"]
        assert [one.id for one in load(path, last=99)] == ["order-1", "order-2", "order-3"]
        assert load(path, last=0) == ()

    def test_one_is_found_by_its_order(self, path: Path) -> None:
        journal(path)

        assert [one.id for one in load(path, id="order-2")] == ["order-2"]
        assert load(path, id="nobody") == ()

    def test_an_event_that_cannot_be_read_is_an_event_without_data(self, path: Path) -> None:
        journal(path)

        assert [event.data for event in load(path)[0].events] == [{"unit": "a/b"}, {}, {}]

    def test_reading_changes_nothing(self, path: Path) -> None:
        journal(path)
        before = path.read_bytes()
        load(path)

        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]

    def test_a_missing_journal_is_a_clear_error_and_makes_no_file(self, path: Path) -> None:
        with pytest.raises(JournalError, match="there is no journal here"):
            load(path)
        assert not path.exists()

    def test_a_directory_is_no_journal(self, tmp_path: Path) -> None:
        with pytest.raises(EvacError, match="there is no journal here"):
            load(tmp_path)

    def test_a_letter_is_no_journal(self, path: Path) -> None:
        path.write_text("dear database\n" * 100)
        with pytest.raises(JournalError, match="cannot be read: file is not a database"):
            load(path)

    def test_another_programs_database_is_no_journal(self, path: Path) -> None:
        journal(path, application=7)
        with pytest.raises(JournalError, match="not evacd's journal"):
            load(path)

    def test_a_newer_schema_says_which_evac_to_use(self, path: Path) -> None:
        journal(path, version=SCHEMA_VERSION + 1)
        with pytest.raises(JournalError, match=f"newer evacd .schema {SCHEMA_VERSION + 1}"):
            load(path)

    def test_a_database_without_its_tables_is_a_clear_error(self, path: Path) -> None:
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.close()
        with pytest.raises(JournalError, match="no such table"):
            load(path)


def test_the_json_holds_the_events_and_the_judgement() -> None:
    document = json.loads(json.dumps(as_json(incident(*SEEN, STARTED, FINISHED))))

    assert document["id"] == "ab12-1"
    assert document["events"][1]["name"] == "order.given"
    assert document["summary"]["units"][0]["ending"] == "kept"
    assert document["summary"]["whole"] is True
