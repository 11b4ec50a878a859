"""Names, units and labels that a Prometheus can live with for years."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Quiet, Unknown
from evacd.report.metrics import MOST_KINDS, Metrics

STATUS: Mapping[str, Any] = {
    "version": "1.2.3",
    "order": {"seconds_left": 12.5},
    "notices": [
        {"confidence": "planned"},
        {"confidence": "advisory"},
        {"confidence": "planned"},
    ],
    "outcomes": [
        {"unit": "u/a", "kept": True},
        {"unit": "u/b", "kept": True},
        {"unit": "u/c", "kept": False},
    ],
    "sources": [{"source": "aws/spot", "unknowns": 3}],
    "lanes": [
        {"store": "s3://key:secret@bucket/p?token=secret", "bytes_per_second": 1e9},
        {"store": "s3://bucket/q?region=eu-west-1&x=secret", "bytes_per_second": 2e9},
        {"store": "s3://bucket/q?region=us-east-1&x=secret", "bytes_per_second": 3e9},
    ],
    "workloads": [
        {
            "alive": True,
            "unit": "u/a",
            "job": "secret-job",
            "slots": [{"state": "complete"}, {"state": "free"}],
        },
        {"alive": False, "unit": "u/d", "job": "secret-job", "slots": [{"state": "complete"}]},
    ],
    "memory": {"budget": 1000, "used": 400},
    "intervals": [
        {
            "unit": "u/a",
            "interval": 40.0,
            "stall": 0.4,
            "net_consumer": False,
            "shares": {"stalls": 0.01, "useful": 0.9},
        },
        {
            "unit": "u/d",
            "interval": 90.0,
            "stall": 0.1,
            "net_consumer": True,
            "shares": {"stalls": 0.001, "useful": -0.2},
        },
    ],
    "peer": {
        "budget": 500,
        "used": 20,
        "jobs": [{"prefix": "u/secret-job"}],
        "refused": {"token": 3},
    },
}
CALM: Mapping[str, Any] = {
    "version": "1.2.3",
    "workloads": [],
    "memory": {"budget": 1000, "used": 0},
}


def notice(kind: str = "terminate") -> Notice:
    return Notice("aws/spot", kind, "x", Confidence.CERTAIN, 50.0, 0.0)


def busy() -> Metrics:
    """One that has seen one of everything."""
    metrics = Metrics(lambda: STATUS)
    for probe in (
        Quiet("aws/spot"),
        Noticed(notice()),
        Cancelled("aws/spot", "x"),
        Unknown("aws/spot", "HTTP 503"),
    ):
        metrics.probed("aws/spot", probe)
    metrics.noticed(notice())
    metrics.crashed("aws/spot")
    for name, data in (
        ("commit.finished", {"store": "file:///a", "nbytes": 7, "seconds": 0.3}),
        ("cordon.closed", {"name": "command", "seconds": 1.0}),
        ("cordon.failed", {"name": "command", "reason": "x"}),
        ("departure.announced", {"name": "webhook", "word": "leaving", "job": "secret-job"}),
        ("departure.failed", {"name": "webhook", "word": "lost", "job": "", "reason": "x"}),
        ("plan.made", {"steps": []}),
        ("own_order.ended", {"result": "kept"}),
        ("denied.register", {}),
        ("denied.dropped", {}),
    ):
        metrics.happened(name, data)
    return metrics


class Samples:
    """What is exported, by name and values of labels in any order."""

    def __init__(self, metrics: Metrics) -> None:
        self._values = {
            (sample.name, frozenset(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(metrics.text().decode())
            for sample in family.samples
        }

    def __call__(self, name: str, *labels: str) -> float | None:
        return self._values.get((name, frozenset(labels)))

    def series(self, name: str) -> int:
        return sum(each == name for each, _ in self._values)


def test_each_thing_that_happens_is_counted_in_its_unit() -> None:
    seen = Samples(busy())

    for outcome in ("quiet", "notice", "cancelled", "unknown"):
        assert seen("evac_probe_requests_total", "aws/spot", outcome) == 1
    assert seen("evac_notices_total", "aws/spot", "terminate", "certain") == 1
    assert seen("evac_source_crashes_total", "aws/spot") == 1
    assert seen("evac_flush_bytes_total", "file:///a") == 7
    assert (seen("evac_flush_seconds_count"), seen("evac_flush_seconds_sum")) == (1, 0.3)
    assert seen("evac_cordon_total", "command", "closed") == 1
    assert seen("evac_cordon_total", "command", "failed") == 1
    assert seen("evac_departures_total", "webhook", "announced") == 1
    assert seen("evac_departures_total", "webhook", "failed") == 1
    assert seen("evac_workload_orders_total", "kept") == 1
    assert seen("evac_clients_denied_total", "register") == 1
    assert seen("evac_peer_refused_total", "token") == 3
    assert seen("evac_clients_denied_total", "dropped") == 1


def test_calls_of_a_store_are_counted_and_timed_by_verb_and_result() -> None:
    metrics = Metrics(lambda: CALM)
    for result in ("ok", "ok", "failed", "missing"):
        facts = {"store": "s3://key:secret@bucket", "verb": "put", "result": result}
        metrics.happened("store.called", {**facts, "seconds": 0.05})

    text = metrics.text().decode()
    counted = [line for line in text.splitlines() if line.startswith("evac_store_calls_total{")]
    assert sorted(line.split()[-1] for line in counted) == ["1.0", "1.0", "2.0"]
    assert "secret" not in text
    assert 'le="0.1"' in text


def test_the_state_is_read_at_the_moment_it_is_asked_for() -> None:
    seen = Samples(busy())

    assert seen("evac_build_info", "1.2.3") == 1
    assert seen("evac_order_active") == 1
    assert seen("evac_notice_deadline_seconds") == 12.5
    assert seen("evac_probe_consecutive_failures", "aws/spot") == 3
    items = {state: seen("evac_flush_items", state) for state in ("waiting", "kept", "lost")}
    assert items == {"waiting": 1, "kept": 2, "lost": 1}
    assert seen("evac_notices_standing", "planned") == 2
    assert seen("evac_notices_standing", "advisory") == 1
    assert seen("evac_notices_standing", "certain") == 0
    assert seen("evac_workloads") == 1
    assert seen("evac_slots", "complete") == 2
    assert seen("evac_slots", "writing") == 0
    assert seen("evac_memory_budget_bytes") == 1000
    assert seen("evac_memory_used_bytes") == 400
    assert seen("evac_lane_bytes_per_second", "s3://bucket/p?...") == 1e9
    assert seen("evac_lane_bytes_per_second", "s3://bucket/q?region=eu-west-1&...") == 2e9
    assert seen("evac_lane_bytes_per_second", "s3://bucket/q?region=us-east-1&...") == 3e9


def test_of_the_jobs_intervals_the_worst_is_exported_and_how_many_are_net_consumers() -> None:
    seen = Samples(busy())

    assert seen("evac_jobs_net_consumers") == 1
    assert seen("evac_stage_interval_seconds") == 90
    assert seen("evac_stage_stall_seconds") == 0.4
    assert seen("evac_stage_stall_ratio") == 0.01
    assert seen("evac_job_useful_ratio") == -0.2
    nobody = Samples(Metrics(lambda: CALM))
    assert nobody("evac_jobs_net_consumers") == 0
    assert nobody("evac_stage_interval_seconds") is None


def test_without_an_order_there_is_no_deadline_and_not_a_false_one() -> None:
    seen = Samples(Metrics(lambda: CALM))

    assert seen("evac_order_active") == 0
    assert seen("evac_notice_deadline_seconds") is None


def test_how_long_before_their_time_notices_are_seen_is_measured_and_late_ones_are_counted() -> (
    None
):
    metrics = Metrics(lambda: CALM)
    for deadline, seen_at, confidence in (
        (130.0, 100.0, Confidence.CERTAIN),
        (100.0, 100.0, Confidence.STARTED),  # its date was past: the deadline is now
        (None, 100.0, Confidence.CERTAIN),  # no time to measure by
        (130.0, 100.0, Confidence.ADVISORY),  # nothing happens then
    ):
        metrics.noticed(Notice("azure", "preempt", "x", confidence, deadline, seen_at))

    seen = Samples(metrics)
    assert (seen("evac_notice_lead_seconds_count"), seen("evac_notice_lead_seconds_sum")) == (2, 30)
    assert seen("evac_notice_lead_seconds_bucket", "0.0") == 1
    assert seen("evac_notice_lead_seconds_bucket", "30.0") == 2
    assert seen("evac_notices_late_total", "azure") == 1


def test_without_an_order_no_job_waits_to_be_flushed() -> None:
    calm = {**CALM, "workloads": [{"unit": "u/a", "alive": True, "slots": []}]}

    assert Samples(Metrics(lambda: calm))("evac_flush_items", "waiting") == 0


def test_neither_jobs_nor_secrets_nor_ids_become_labels() -> None:
    text = busy().text().decode()

    assert "secret" not in text
    assert not re.search(r"\b(job|id|pid|rank|step)=", text)


def test_kinds_that_nobody_foresaw_cannot_fill_the_memory() -> None:
    metrics = Metrics(lambda: CALM)
    for number in range(MOST_KINDS + 10):
        metrics.noticed(notice(f"kind-{number}"))

    seen = Samples(metrics)
    assert seen.series("evac_notices_total") == MOST_KINDS + 1
    assert seen("evac_notices_total", "aws/spot", "other", "certain") == 10


def test_two_daemons_in_one_process_count_for_themselves() -> None:
    first, second = Metrics(lambda: CALM), Metrics(lambda: CALM)
    first.crashed("a")

    assert Samples(second)("evac_source_crashes_total", "a") is None


def test_names_keep_to_the_conventions() -> None:
    for family in text_string_to_metric_families(busy().text().decode()):
        assert family.name.startswith("evac_")
        assert family.documentation.endswith(".")
        assert family.type in {"counter", "gauge", "histogram"}


def test_promtool_finds_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian: prometheus) is not installed")
    done = subprocess.run([promtool, "check", "metrics"], input=busy().text(), capture_output=True)

    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
