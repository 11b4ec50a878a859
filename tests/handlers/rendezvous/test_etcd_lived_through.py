"""Agents live through an etcd's troubles: none of a moment costs a round, and a long one costs no agent."""

import base64
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evac.rendezvous.address import Address
from evac.rendezvous.state import State
from tests.handlers.rendezvous.nodes import Node, local, until, work_together
from tests.handlers.rendezvous.test_etcd_secured import depart
from tests.handlers.rendezvous.test_etcd_troubles import compact
from tests.services.etcd import etcd_process
from tests.services.etcd_secured import USER, Secured, text
from tests.services.process import free_port
from tests.services.skipping import or_skip

# Nobody is taken for dead: a machine as busy as that would be told apart from the trouble by nothing.
PATIENT = {"beat_seconds": 0.2, "dead_seconds": 1e6, "connect_seconds": 1e6, "join_seconds": 1e6}


def member(etcd: Secured) -> str:
    return str(etcd.as_root("/v3/kv/range", key="AA==")["header"]["member_id"])


def alarm(etcd: Secured, action: str) -> None:
    number = member(etcd)
    etcd.as_root("/v3/maintenance/alarm", action=action, memberID=number, alarm="NOSPACE")


def grant(etcd: Secured, user: str) -> None:
    etcd.as_root("/v3/auth/user/grant", user=user, role=USER)


def revoke(etcd: Secured, user: str) -> None:
    etcd.as_root("/v3/auth/user/revoke", name=user, role=USER)


def lonely(etcd: Secured, name: str) -> dict[str, Any]:
    """What an agent is started with that has a user of its own."""
    etcd.as_root("/v3/auth/user/add", name=name, password=name)
    grant(etcd, name)
    return {**PATIENT, "etcd": etcd.user(name, name)}


def state(node: Node) -> State:
    assert node.handler is not None
    return node.handler._follower.state  # pyright: ignore[reportPrivateUsage]


def feels(*nodes: Node, told: str) -> Callable[[], bool]:
    return lambda: all(node.handler is not None and told in node.handler.trouble for node in nodes)


def is_well(*nodes: Node) -> Callable[[], bool]:
    return lambda: all(node.handler is not None and not node.handler.trouble for node in nodes)


def test_no_trouble_of_a_moment_costs_a_round(
    etcd: Secured, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    conf = lonely(etcd, "both")
    nodes = [Node(name, address, minimum=1, maximum=2, conf=conf).start() for name in "ab"]
    until("two work", work_together(nodes))

    alarm(etcd, "ACTIVATE")
    until("nothing can be written", feels(*nodes, told="database space exceeded"))
    alarm(etcd, "DEACTIVATE")
    until("it can", is_well(*nodes))

    revoke(etcd, "both")
    until("they may not", feels(*nodes, told="no permission"))
    grant(etcd, "both")
    until("they may", is_well(*nodes))

    lease = etcd.as_root("/v3/kv/range", key=text(f"{address.prefix}/lease".encode()))["kvs"][0][
        "value"
    ]
    etcd.as_root("/v3/lease/revoke", ID=base64.b64decode(lease).decode())
    until("they give back what they know", lambda: [state(node).term for node in nodes] == [1, 1])

    compact(etcd)
    etcd.as_root("/v3/auth/disable")
    etcd.ask("/v3/auth/enable")
    assert work_together(nodes)()
    assert [len(node.rounds) for node in nodes] == [1, 1]

    depart(etcd, address, "b")
    until("one goes on", work_together(nodes[:1]))
    nodes[0].finish()
    assert [node.join() for node in nodes] == ["finished", 0]
    assert "the rendezvous store takes nothing, trying again: " in caplog.text


def test_who_waits_is_not_ended_by_a_moment_in_which_it_may_not(
    etcd: Secured, address: Address
) -> None:
    """As at its first word, where a person looks: it was let in, and may have waited for hours."""
    waits = Node("a", address, conf=lonely(etcd, "waits")).start()
    until("it waits", lambda: waits.handler is not None and waits.handler.waits)

    revoke(etcd, "waits")
    until("it may not", feels(waits, told="no permission"))
    grant(etcd, "waits")
    until("it may", is_well(waits))

    other = Node("b", address, conf={**PATIENT, "etcd": etcd.files}).start()
    until("two work", work_together([waits, other]))
    for node in (waits, other):
        node.finish()
    assert [waits.join(), other.join()] == ["finished", "finished"]


def test_who_was_turned_away_for_so_long_that_it_counts_as_dead_comes_back_by_itself(
    etcd: Secured, address: Address
) -> None:
    mortal = {"dead_seconds": 2.0}
    nodes = [
        Node(name, address, conf={**PATIENT, **mortal, "etcd": etcd.files}).start() for name in "ab"
    ]
    lone = Node("c", address, conf={**lonely(etcd, "lone"), **mortal}).start()
    until("three work", work_together([*nodes, lone]))

    revoke(etcd, "lone")
    until("two go on", work_together(nodes))
    until("it may not", feels(lone, told="no permission"))
    grant(etcd, "lone")

    until("it is its own replacement", work_together([*nodes, lone]))
    for node in (*nodes, lone):
        node.finish()
    assert [node.join() for node in (*nodes, lone)] == ["finished"] * 3


@pytest.mark.skipif(os.environ.get("EVAC_NIGHTLY") != "1", reason="EVAC_NIGHTLY=1 runs it")
def test_an_etcd_that_is_started_anew_costs_no_round_with_its_data_or_without(
    tmp_path: Path,
) -> None:
    port = free_port()
    address = local(port, "etcd")
    nodes = [Node(name, address, minimum=1, maximum=2, conf=PATIENT) for name in "ab"]

    def terms() -> list[int]:
        return [state(node).term for node in nodes]

    def away() -> bool:
        return not any(is_well(node)() for node in nodes)

    with or_skip(), etcd_process(tmp_path / "one", port=port):
        for node in nodes:
            node.start()
        until("two work", work_together(nodes))
    until("it is away", away)
    with etcd_process(tmp_path / "one", port=port):
        until("all is well", is_well(*nodes))
        assert terms() == [0, 0]
    until("it is away again", away)
    with etcd_process(tmp_path / "two", port=port):
        until("it is given what they know", lambda: terms() == [1, 1])
        until("all is well", is_well(*nodes))
        assert [len(node.rounds) for node in nodes] == [1, 1]
        for node in nodes:
            node.finish()
        assert [node.join() for node in nodes] == ["finished", "finished"]
