"""Laws of the marks: what is undone is what was done, whatever others write in between."""

import re
from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evacd.cordon.kubernetes import marks, words
from evacd.cordon.kubernetes.marks import TAINT
from tests.kube.patches import merge

KEYS = st.sampled_from(["nvidia.com/gpu", "a", "b", TAINT + "x"])
EFFECTS = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
TAINTS = st.lists(
    st.fixed_dictionaries({"key": KEYS, "effect": EFFECTS}), max_size=4, unique_by=str
)
LABEL = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
REASON = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?")


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, Any]:
    """A node as others have left it."""
    node: dict[str, Any] = {"metadata": {"name": "n", "resourceVersion": "1"}, "spec": {}}
    if draw(st.booleans()):
        node["metadata"]["annotations"] = {"other": "x"}
    if draw(st.booleans()):
        node["spec"]["unschedulable"] = True
    if taints := draw(TAINTS):
        node["spec"]["taints"] = taints
    return node


def closed(node: dict[str, Any], order: str = "o-1", boot: str = "b-1") -> dict[str, Any]:
    node = merge(node, marks.closing(node, order, boot))
    patch = marks.tainting(node, "gcp-preempted")
    return node if patch is None else merge(node, patch)


def reopened(node: dict[str, Any]) -> dict[str, Any]:
    patch = marks.reopening(node)
    return node if patch is None else merge(node, patch)


def plain(node: dict[str, Any]) -> dict[str, Any]:
    """Without what is empty: to have none and to have an empty one is the same."""
    node = deepcopy(node)
    for part, key in (("metadata", "annotations"), ("spec", "taints")):
        if not node[part].get(key):
            node[part].pop(key, None)
    return node


@given(nodes())
def test_to_reopen_undoes_the_close(node: dict[str, Any]) -> None:
    assert plain(reopened(closed(node))) == plain(node)


@given(nodes(), st.lists(st.sampled_from(["o-1", "o-2"]), min_size=1, max_size=4))
def test_closed_often_is_closed_once(node: dict[str, Any], orders: list[str]) -> None:
    now = node
    for number, order in enumerate(orders):
        now = closed(now, order, f"b-{number}")

    assert marks.still_open(now) == ""
    assert marks.is_ours(now, f"b-{len(orders) - 1}")
    assert plain(reopened(now)) == plain(node)


@given(nodes(), st.booleans())
def test_who_opens_it_while_we_have_it_closed_finds_it_open(
    node: dict[str, Any], again: bool
) -> None:
    """Whoever had closed it before us has taken that back meanwhile: nobody else would open it."""
    now = closed(node)
    del now["spec"]["unschedulable"]
    if again:
        now = closed(now, "o-2")

    assert "unschedulable" not in reopened(now)["spec"]


@given(nodes(), TAINTS)
def test_what_others_write_meanwhile_stays(node: dict[str, Any], theirs: list[Any]) -> None:
    now = closed(node)
    ours = [each for each in now["spec"]["taints"] if each["key"] == TAINT]
    now["spec"]["taints"] = [*theirs, *ours]

    assert reopened(now)["spec"].get("taints", []) == theirs


@given(nodes())
def test_a_node_that_is_not_ours_is_left_alone(node: dict[str, Any]) -> None:
    assert marks.reopening(node) is None


@given(nodes(), st.text() | st.just("{}") | st.just('{"order": 1}'))
def test_a_mark_that_nobody_can_read_opens_nothing(node: dict[str, Any], text: str) -> None:
    now = closed(node)
    now["metadata"]["annotations"][marks.ANNOTATION] = text

    assert reopened(now)["spec"].get("unschedulable") is True
    assert marks.mark_of(now) is None


@given(nodes())
def test_nothing_of_ours_is_no_execute(node: dict[str, Any]) -> None:
    before = [each for each in node["spec"].get("taints", []) if each["effect"] == "NoExecute"]
    after = [each for each in closed(node)["spec"]["taints"] if each["effect"] == "NoExecute"]
    assert after == before


@given(st.text(max_size=200))
def test_any_reason_is_a_value_and_a_word_that_a_server_takes(text: str) -> None:
    assert LABEL.fullmatch(marks.taint_value(text))
    assert REASON.fullmatch(words.reason_of(text))


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_no_document_breaks_it(document: Any) -> None:
    node = document if isinstance(document, dict) else {"spec": document, "metadata": document}
    marks.mark_of(node)
    marks.others(node)
    marks.still_open(node)
    marks.tainting(node, "x")
    marks.reopening(node)
