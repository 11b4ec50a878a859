"""The table always comes to its end, and says what to do."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.check import Check, Finding, Report, Verdict, as_json, checks, examine, table
from evacd.clock import SystemClock
from evacd.config import Config, explain, load


def test_a_check_that_hangs_costs_one_line() -> None:
    forever = threading.Event()

    def hangs() -> Finding:
        forever.wait()
        return Finding("hangs", Verdict.OK, "at last")

    report = examine(
        [
            Check("hangs", hangs, seconds=0.01),
            Check("works", lambda: Finding("works", Verdict.OK, "fine")),
        ]
    )
    forever.set()

    assert [one.verdict for one in report.findings] == [Verdict.FAIL, Verdict.OK]
    assert "no answer within 0.01 s" in report.findings[0].detail
    assert report.stuck
    assert not report.ok


def test_a_bug_in_a_check_is_not_taken_for_an_answer() -> None:
    def broken() -> Finding:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        examine([Check("broken", broken)])


def test_no_store_fails() -> None:
    by_name = {one.name: one for one in checks(Config(), SystemClock())}

    finding = by_name["store"].run()

    assert isinstance(finding, Finding)
    assert finding.verdict is Verdict.FAIL
    assert "dies with it" in finding.cure


def test_every_store_gets_its_own_line() -> None:
    config = load(None, {"EVAC_STORE": "file:///a,file:///b"}, {})

    assert [one.name for one in checks(config, SystemClock())].count("store") == 2


texts = st.text(max_size=30)
findings = st.builds(
    Finding, st.text(min_size=1, max_size=9), st.sampled_from(Verdict), texts, texts
)


@given(st.lists(findings, min_size=1, max_size=5))
def test_a_warning_does_not_fail_and_a_failure_does(found: list[Finding]) -> None:
    report = Report(tuple(found))

    assert report.ok is all(one.verdict in {Verdict.OK, Verdict.WARN} for one in found)
    assert json.loads(as_json(report, []))["ok"] is report.ok


def test_the_table_is_one_aligned_line_per_finding() -> None:
    shown = table(
        [
            Finding("a", Verdict.OK, "fine"),
            Finding("longer", Verdict.FAIL, "torn\nin two", "mend it"),
            Finding("b", Verdict.WARN, "hm"),
        ]
    )

    assert shown == (
        "ok    a       fine\n"  #
        "FAIL  longer  torn in two -> mend it\n"
        "warn  b       hm\n"
    )


def test_json_explains_every_setting() -> None:
    document = json.loads(as_json(Report(()), explain(Config())))

    assert {"key": "memory.budget", "value": "50%", "origin": "default"} in document["config"]
