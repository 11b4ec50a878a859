"""No new work lands on a dying node: its cordon is closed at once, and waits for no flush."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import Node, node_at
from tests.agent.daemon.test_notice import Cloud


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from node_at(tmp_path / "node")


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    cloud = Cloud()
    yield cloud
    cloud.close()


def test_a_certain_notice_closes_the_cordon_while_the_flush_still_runs(
    node: Node, cloud: Cloud
) -> None:
    node.start(*cloud.flags, "--cordon-command", "true")
    # Its turn lasts as long as its window: the flush cannot be over before.
    hung = node.workload("index", mode="callback", need_seconds=8.0, behave="hang")
    hung.do("connect")
    node.staged(5, job="staged")

    cloud.do("preempt")
    node.event("turn.given")
    closed = node.event("cordon.closed")

    names = [event.name for event in node.events()]
    assert names[:2] == ["notice.seen", "order.given"]
    assert "report.written" not in names[: names.index("cordon.closed")]
    assert "flush.lost" not in names[: names.index("cordon.closed")]
    # Before the flush could be over, told on the journal's own clock; the command's time is not ours.
    assert closed.at - closed.data["seconds"] < 8.0
