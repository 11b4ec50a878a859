import pytest

from evac.wire import Cancel, Drain, Drill, Hello, Message
from evac.wire.messages import SAID
from evacd.workloads.session import WORDS, Door, Stage


def test_the_table_is_total() -> None:
    assert set(WORDS) == {(door, stage) for door in Door for stage in Stage}


def test_only_hello_opens_a_connection() -> None:
    assert WORDS[Door.WORKLOAD, Stage.SILENT] == {Hello}
    assert WORDS[Door.ADMIN, Stage.SILENT] == {Hello}


@pytest.mark.parametrize("stage", Stage)
def test_what_drains_a_node_is_said_at_the_admin_door_alone(stage: Stage) -> None:
    assert not WORDS[Door.WORKLOAD, stage] & {Drain, Cancel, Drill}


def test_every_word_for_the_daemon_can_be_said_somewhere() -> None:
    heard: set[type[Message]] = set().union(*WORDS.values())
    assert heard == set(SAID)
