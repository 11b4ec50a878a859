"""Prometheus metrics: counted as things happen, the rest read off the status when asked for.

Names and units follow prometheus.io/docs/practices/naming (base units, ``_total`` for what
only grows). Labels hold what is configured or comes from a short list, never a job's name: a
kind of notice beyond the first `MOST_KINDS` is counted as ``other``.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from evacd.config import without_secrets
from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.report.at_risk import of_risk
from evacd.workloads.job import SlotState

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
MOST_KINDS = 32
_OUTCOMES = {Quiet: "quiet", Noticed: "notice", Cancelled: "cancelled", Unknown: "unknown"}
_LEAD_SECONDS = (0, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 86400, 604800)
_FLUSH_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_CALL_SECONDS = (0.005, 0.02, 0.1, 0.5, 2, 10, 60)
# Events of the path, as the report names them: which counter, and the result.
_BESIDE = {
    "cordon.closed": ("cordon", "closed"),
    "cordon.reopened": ("cordon", "reopened"),
    "cordon.failed": ("cordon", "failed"),
    "cordon.told": ("cordon", "told"),
    "departure.announced": ("departure", "announced"),
    "departure.failed": ("departure", "failed"),
}


class Metrics:
    """All of one daemon's, in a registry of their own."""

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Nothing has happened yet.

        Args:
            status: What `evac status` shows, at the moment it is asked.
        """
        # A second series for each counter that says when it was made: nobody asks for it.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # theirs
        self._registry = CollectorRegistry()
        self._kinds: set[str] = set()
        self._notices = self._counter(
            "evac_notices", "Notices heard, each once.", "source", "kind", "confidence"
        )
        self._lead = Histogram(
            "evac_notice_lead_seconds",
            "Seconds from the first sight of a notice with a usable time to that time, each"
            " notice once; 0 for one that was seen no earlier.",
            buckets=_LEAD_SECONDS,
            registry=self._registry,
        )
        self._late = self._counter(
            "evac_notices_late",
            "Notices that were seen when their time had come already, each once.",
            "source",
        )
        self._probes = self._counter(
            "evac_probe_requests", "Answers of notice sources.", "source", "outcome"
        )
        self._crashes = self._counter(
            "evac_source_crashes", "Failures of a notice source's own code.", "source"
        )
        self._flushed = self._counter(
            "evac_flush_bytes", "Bytes flushed and committed, by store.", "store"
        )
        self._trickled = self._counter(
            "evac_trickle_bytes", "Bytes written before there was any notice, by store.", "store"
        )
        self._calls = self._counter(
            "evac_store_calls", "Calls of a store that have ended.", "store", "verb", "result"
        )
        self._call_seconds = Histogram(
            "evac_store_call_seconds",
            "Seconds from a call of a store to its answer, failures included.",
            ("store", "verb"),
            buckets=_CALL_SECONDS,
            registry=self._registry,
        )
        self._seconds = Histogram(
            "evac_flush_seconds",
            "Seconds that one workload's flush took, its commit included.",
            buckets=_FLUSH_SECONDS,
            registry=self._registry,
        )
        self._beside = {
            "cordon": self._counter("evac_cordon", "Cordons done and undone.", "name", "result"),
            "departure": self._counter(
                "evac_departures", "Announcements of this node's departure.", "name", "result"
            ),
        }
        self._own_orders = self._counter(
            "evac_workload_orders", "Orders that workloads gave for themselves.", "result"
        )
        self._denied = self._counter(
            "evac_clients_denied",
            "What clients of the sockets were refused or dropped for, logged or not.",
            "what",
        )
        self._registry.register(_Shown(status))

    def text(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self._registry)

    # --- what is counted -----------------------------------------------------------------

    def probed(self, source: str, probe: Probe) -> None:
        """A source answered."""
        self._probes.labels(source, _OUTCOMES[type(probe)]).inc()

    def noticed(self, notice: Notice) -> None:
        """A notice that was not known before."""
        kind = notice.kind
        if kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
            kind = "other"
        self._kinds.add(kind)
        self._notices.labels(notice.source, kind, notice.confidence.word).inc()
        if notice.deadline is None or notice.confidence is Confidence.ADVISORY:
            return
        # A date in the past is a deadline of now by the time it gets here.
        lead = notice.deadline - notice.seen
        self._lead.observe(max(0.0, lead))
        if lead <= 0:
            self._late.labels(notice.source).inc()

    def crashed(self, source: str) -> None:
        """A source's code failed."""
        self._crashes.labels(source).inc()

    def happened(self, name: str, data: Mapping[str, Any]) -> None:
        """An event of the path, as the report has it; most count nothing."""
        if name == "commit.finished":
            self._flushed.labels(without_secrets(data["store"])).inc(data["nbytes"])
            self._seconds.observe(data["seconds"])
        elif name == "trickle.finished":
            self._trickled.labels(without_secrets(data["store"])).inc(data["nbytes"])
        elif name == "store.called":
            store = without_secrets(data["store"])
            self._calls.labels(store, data["verb"], data["result"]).inc()
            self._call_seconds.labels(store, data["verb"]).observe(data["seconds"])
        elif name == "own_order.ended":
            self._own_orders.labels(data["result"]).inc()
        elif name.startswith("denied."):
            self._denied.labels(name.removeprefix("denied.")).inc()
        elif name in _BESIDE:
            counter, result = _BESIDE[name]
            self._beside[counter].labels(data["name"], result).inc()

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self._registry)


class _Shown(Collector):
    """What the status shows, as gauges."""

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """None by name: the status may not be ready when this is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All gauges, of one moment."""
        status = self._status()
        order = status.get("order")
        yield _gauge(
            "evac_build_info", "Always 1; which evac this is.", {(status["version"],): 1}, "version"
        )
        yield _gauge("evac_order_active", "An evacuation order is running.", {(): int(bool(order))})
        left: dict[tuple[str, ...], float] = {(): order["seconds_left"]} if order else {}
        yield _gauge(
            "evac_notice_deadline_seconds",
            "Seconds left to the running order's deadline, negative past it; absent without one.",
            left,
        )
        standing = Tally(each["confidence"] for each in status.get("notices", ()))
        yield _gauge(
            "evac_notices_standing",
            "Notices that were announced and not taken back, by how sure they are.",
            {(each.word,): standing[each.word] for each in Confidence},
            "confidence",
        )
        yield _gauge(
            "evac_probe_consecutive_failures",
            "Answers in a row of a notice source that meant nothing.",
            {(each["source"],): each["unknowns"] for each in status.get("sources", ())},
            "source",
        )
        yield _gauge(
            "evac_lane_bytes_per_second",
            "Measured rate of a store.",
            {
                (without_secrets(lane["store"]),): lane["bytes_per_second"]
                for lane in status.get("lanes", ())
                # What is only assumed is no figure of a link.
                if lane.get("measured", True)
            },
            "store",
        )
        yield from _of_workloads(status)
        yield from _of_intervals(status.get("intervals", ()))
        if "used" in (peer := status.get("peer") or {}):
            yield _gauge("evac_peer_held_bytes", "Memory kept for other nodes.", {(): peer["used"]})
            yield _gauge(
                "evac_peer_budget_bytes", "Memory that may be kept for other nodes.",
                {(): peer["budget"]},
            )  # fmt: skip
            yield _gauge(
                "evac_peer_held_jobs", "Jobs of which other nodes' bytes are kept.",
                {(): len(peer["jobs"])},
            )  # fmt: skip
            refused = CounterMetricFamily(
                "evac_peer_refused", "Connections of peers that were not served, or cut off.",
                labels=("reason",),
            )  # fmt: skip
            for reason, times in peer["refused"].items():
                refused.add_metric((reason,), times)
            yield refused
        if "risk" in status:
            yield from of_risk(status["risk"])


def _of_intervals(intervals: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Of the jobs that say how often they stage; names of jobs are no labels, so the worst of them."""
    yield _gauge(
        "evac_jobs_net_consumers",
        "Jobs that get nothing done between two reclaims of their machines.",
        {(): sum(bool(one["net_consumer"]) for one in intervals)},
    )
    if not intervals:
        return
    yield _gauge(
        "evac_stage_interval_seconds",
        "From one stage to the next, of the job that stages least often.",
        {(): max(one["interval"] for one in intervals)},
    )
    yield _gauge(
        "evac_stage_stall_seconds",
        "For which a stage holds training up, of the job that is held up longest.",
        {(): max(one["stall"] for one in intervals)},
    )
    yield _gauge(
        "evac_stage_stall_ratio",
        "Part of the time for which stages hold training up, of the job where it is largest.",
        {(): max(one["shares"]["stalls"] for one in intervals)},
    )
    yield _gauge(
        "evac_job_useful_ratio",
        "Part of the time in which new work is done, of the job where it is smallest; 0 or less is a"
        " net consumer.",
        {(): min(one["shares"]["useful"] for one in intervals)},
    )


def _of_workloads(status: Mapping[str, Any]) -> Iterator[Metric]:
    workloads = status["workloads"]
    items = {one["unit"]: "kept" if one["kept"] else "lost" for one in status.get("outcomes", ())}
    if status.get("order"):
        items = {one["unit"]: "waiting" for one in workloads} | items
    states = Tally(items.values())
    yield _gauge(
        "evac_flush_items",
        "Jobs under the running order, by what became of them so far.",
        {(word,): states[word] for word in ("waiting", "kept", "lost")},
        "state",
    )
    alive = sum(bool(one["alive"]) for one in workloads)
    yield _gauge("evac_workloads", "Workloads on board.", {(): alive})
    slots = Tally(slot["state"] for one in workloads for slot in one["slots"])
    yield _gauge(
        "evac_slots",
        "Slots of staged state, by what they hold.",
        {(state.value,): slots[state.value] for state in SlotState},
        "state",
    )
    memory = status["memory"]
    yield _gauge("evac_memory_budget_bytes", "Memory that slots may take.", {(): memory["budget"]})
    yield _gauge("evac_memory_used_bytes", "Memory that slots take.", {(): memory["used"]})
    yield _gauge(
        "evac_state_degraded",
        "1 where the state directory cannot be written.",
        {(): float(bool(status.get("state_wrong")))},
    )
    kept = status.get("kept", {})
    yield _gauge(
        "evac_slots_unstored", "Waiting for systemd's fd store.", {(): kept.get("unstored", 0)}
    )
    yield _gauge(
        "evac_slots_unplaced",
        "Memory of before of which no table tells.",
        {(): kept.get("unplaced", 0)},
    )


def _gauge(
    name: str, about: str, values: Mapping[tuple[str, ...], float], *labels: str
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about, labels=labels)
    for label, value in values.items():
        family.add_metric(label, value)
    return family
