"""What is read from a node object, and what is never read into one."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Confidence
from evacd.notice.node import DEFAULT_RULES, Rule, Where, in_cluster, read
from evacd.notice.node.aks import date_in
from evacd.notice.node.frames import Bookmark, Changed, Deleted, Expired, Lines, Malformed, decode

ADVISORY, PLANNED = Confidence.ADVISORY, Confidence.PLANNED
CERTAIN, STARTED = Confidence.CERTAIN, Confidence.STARTED

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "labels", "spec", "taints", "status", "conditions", "key", "type"]
            )
            | st.text(max_size=8),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)

# Node-shaped, with known names in known places and anything as a value.
NAMES = st.sampled_from(sorted({rule.key for rule in DEFAULT_RULES})) | st.text(max_size=10)
NODES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"labels": st.dictionaries(NAMES, JSON)})
        | JSON,
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "unschedulable": JSON,
                "taints": st.lists(
                    st.fixed_dictionaries({"key": NAMES}, optional={"effect": JSON, "value": JSON})
                    | JSON,
                    max_size=3,
                ),
            },
        ),
        "status": st.fixed_dictionaries(
            {
                "conditions": st.lists(
                    st.fixed_dictionaries(
                        {"type": NAMES, "status": st.sampled_from(["True", "False", "Unknown"])},
                        optional={"message": JSON},
                    )
                    | JSON,
                    max_size=3,
                )
            }
        ),
    },
)


def with_label(key: str, value: str) -> dict[str, Any]:
    return {"metadata": {"labels": {key: value}}}


def with_taint(key: str, effect: str, value: str | None = None) -> dict[str, Any]:
    return {"spec": {"taints": [{"key": "other", "effect": "NoExecute"}, {"key": key, "effect": effect, "value": value}]}}  # fmt: skip  # one table row


def with_condition(kind: str, status: str, message: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": status, "message": message}]}}


PREEMPT = "Preempt Scheduled: Sat, 01 Aug 2026 05:41:02 GMT. For more information, see x."
DATE = datetime(2026, 8, 1, 5, 41, 2, tzinfo=UTC)
SPOT, EVENT = "PreemptionScheduled", "VMEventScheduled"


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (with_label("qos.coreweave.cloud/pending-preemption", "true"), ("coreweave/preempt", CERTAIN, None)),
        (with_label("qos.coreweave.cloud/pending-preemption", "false"), None),
        (with_taint("karpenter.sh/disrupted", "NoSchedule"), ("karpenter/disrupt", CERTAIN, None)),
        (with_taint("karpenter.sh/disrupted", "NoExecute"), None),
        (with_taint("ToBeDeletedByClusterAutoscaler", "NoSchedule", "17"), ("autoscaler/scale-down", CERTAIN, None)),
        (with_taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"), None),
        (with_taint("cloud.google.com/impending-node-termination", "NoSchedule"), ("gke/terminate", CERTAIN, None)),
        (with_condition(SPOT, "True", PREEMPT), ("aks/preempt", CERTAIN, DATE)),
        (with_condition(SPOT, "True", "Preempt Scheduled: soon."), ("aks/preempt", CERTAIN, None)),
        (with_condition(SPOT, "True", "Preempt Started."), ("aks/preempt", STARTED, None)),
        (with_condition(SPOT, "True", f"SpotRebalanceRecommendation Advisory: {PREEMPT}"), ("aks/spotrebalancerecommendation", ADVISORY, None)),
        (with_condition(SPOT, "True", "Something new"), ("aks/other", ADVISORY, None)),
        (with_condition(SPOT, "False", PREEMPT), None),
        (with_condition(SPOT, "Unknown", PREEMPT), None),
        (with_condition(EVENT, "True", PREEMPT), ("aks/preempt", CERTAIN, DATE)),
        (with_condition(EVENT, "True", PREEMPT.replace("Preempt", "Terminate")), ("aks/terminate", CERTAIN, DATE)),
        (with_condition(EVENT, "True", PREEMPT.replace("Preempt", "Redeploy")), ("aks/redeploy", CERTAIN, DATE)),
        (with_condition(EVENT, "True", PREEMPT.replace("Preempt", "Reboot")), ("aks/reboot", PLANNED, DATE)),
        (with_condition(EVENT, "True", PREEMPT.replace("Preempt", "Freeze")), ("aks/freeze", ADVISORY, None)),
        (with_condition(EVENT, "True", "Reboot Started"), ("aks/reboot", STARTED, None)),
        (with_condition("Ready", "False", "container runtime is down, node is shutting down"), ("kubelet/shutdown", STARTED, None)),
        (with_condition("Ready", "False", "container runtime is down"), None),
        (with_condition("Ready", "Unknown", "node is shutting down"), None),
        (with_label("together.ai/compute-class", "preemptible"), None),
        (with_label("together.ai/compute-class", "preemptible") | {"spec": {"unschedulable": True}}, ("together/cordon", ADVISORY, None)),
        (with_label("together.ai/compute-class", "standard") | {"spec": {"unschedulable": True}}, None),
        ({"spec": {"unschedulable": True}}, None),
    ],
)  # fmt: skip
def test_known_marks(node: object, told: tuple[str, Confidence, datetime | None] | None) -> None:
    matches = read(node, DEFAULT_RULES).matches

    assert [(m.rule.kind, m.rule.confidence, m.date) for m in matches] == ([told] if told else [])


def test_a_status_that_is_unknown_is_neither_there_nor_gone() -> None:
    marks = read(with_condition(SPOT, "Unknown", ""), DEFAULT_RULES)

    assert marks.unclear == {f"condition:{SPOT}"}
    assert marks.matches == ()


def test_a_sites_own_rule_goes_before_the_known_one() -> None:
    own = Rule("mine", Where.TAINT, "karpenter.sh/disrupted", PLANNED, window_seconds=9.0)

    (match,) = read(
        with_taint("karpenter.sh/disrupted", "NoSchedule"), (own, *DEFAULT_RULES)
    ).matches

    assert match.rule is own


@given(NODES | JSON)
def test_anything_is_read_without_an_error_and_each_mark_is_met_once(node: object) -> None:
    marks = read(node, DEFAULT_RULES)

    met = [match.rule.mark for match in marks.matches]
    assert len(met) == len(set(met))
    assert marks.unclear.isdisjoint(met)
    for match in marks.matches:
        assert match.detail.isprintable()
        assert len(match.detail) <= 200
        assert match.rule.key in repr(node)


@given(JSON)
def test_a_node_without_known_names_has_no_marks(node: object) -> None:
    if not any(rule.key in repr(node) for rule in DEFAULT_RULES):
        assert read(node, DEFAULT_RULES).matches == ()


@given(
    st.text(max_size=8),
    st.text(max_size=8),
    st.sampled_from([Where.LABEL, Where.TAINT]),
)
def test_an_exact_rule_is_met_by_its_mark_alone(key: str, value: str, where: Where) -> None:
    pattern = "".join(f"[{c}]" if c in "*?[" else c for c in value)
    rule = Rule("mine", where, key, CERTAIN, value=pattern)
    exact = with_label if where is Where.LABEL else lambda k, v: with_taint(k, "NoSchedule", v)

    assert read(exact(key, value), [rule]).matches
    assert not read(exact(key, value + "x"), [rule]).matches
    assert not read(exact(key + "x", value), [rule]).matches


@given(st.text())
def test_any_message_is_searched_for_a_date_without_an_error(message: str) -> None:
    date_in(message)
    date_in(f"Preempt Scheduled: {message}")


@given(st.datetimes(min_value=datetime(1000, 1, 1), max_value=datetime(9999, 1, 1)))
def test_every_date_of_the_documented_form_is_read(date: datetime) -> None:
    date = date.replace(microsecond=0, tzinfo=UTC)
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    shown = f"Mon, {date.day:02} {months[date.month - 1]} {date.year:04} {date:%H:%M:%S} GMT"

    assert date_in(f"Preempt Scheduled: {shown}. DurationInSeconds: -1.") == date


@pytest.mark.parametrize(
    "message",
    [
        "Preempt Scheduled: Sat, 01 Aug 2026 05:41:02 PST.",
        "Preempt Scheduled: Sat, 31 Feb 2026 05:41:02 GMT.",
        "Preempt Scheduled: Sat, 01 Aug 2026 25:41:02 GMT.",
        "Preempt Scheduled: 2026-08-01T05:41:02Z.",
        "Preempt Scheduled: ",
        "Sat, 01 Aug 2026 05:41:02 GMT",
    ],
)
def test_another_form_is_no_date(message: str) -> None:
    assert date_in(message) is None


# --- the watch's lines ------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30)), st.integers(1, 7))
def test_lines_come_out_however_they_are_cut(lines: list[bytes], size: int) -> None:
    whole = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    splitter = Lines()

    found = [line for piece in pieces for line in splitter.feed(piece)]

    assert found == [line.strip() for line in whole.split(b"\n") if line.strip()]


def test_a_line_without_an_end_is_given_up() -> None:
    splitter = Lines(limit=10)

    assert list(splitter.feed(b"x" * 10)) == []
    with pytest.raises(ValueError, match="over 10 bytes"):
        list(splitter.feed(b"x"))


@given(st.binary() | JSON.map(repr).map(str.encode))
def test_any_line_is_decoded_without_an_error_and_garbage_is_no_change(line: bytes) -> None:
    assert isinstance(decode(line), Malformed)


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        (
            b'{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}',
            Changed({"metadata": {"name": "a", "resourceVersion": "7"}}, "7"),
        ),
        (b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}}', Bookmark("8")),
        (b'{"type":"DELETED","object":{}}', Deleted()),
        (b'{"type":"ERROR","object":{"code":410}}', Expired()),
        (b'{"type":"ERROR","object":{"code":500}}', Malformed("ERROR 500")),
        (b'{"type":"BOOKMARK","object":null}', Malformed("BOOKMARK without a version")),
    ],
)
def test_what_a_watch_says(line: bytes, frame: object) -> None:
    assert decode(line) == frame


# --- where the API server is ------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("10.0.0.1", "443", "https://10.0.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
        ("kubernetes.default.svc", "443", "https://kubernetes.default.svc:443"),
        ("", "443", None),
        ("10.0.0.1", "tcp://x", None),
    ],
)
def test_the_way_out_of_a_pod(host: str, port: str, url: str | None) -> None:
    access = in_cluster({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})

    assert (access.url if access else None) == url
    assert in_cluster({}) is None
