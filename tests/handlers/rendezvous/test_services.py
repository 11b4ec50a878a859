"""The log's store is lost, moves, comes back or is split, as the agents of real stores live through it."""

import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__

from evac.rendezvous import log
from evac.rendezvous.address import Address
from evac.rendezvous.events import Gone, encode
from evac.rendezvous.follower import Follower
from evac.rendezvous.keys import Keys, Unreachable
from evac.rendezvous.state import State
from tests.handlers.rendezvous.nodes import (
    HOST,
    Node,
    WorkerFailed,
    depart,
    local,
    open_keys,
    until,
    where,
    work_together,
)
from tests.services.process import free_port

QUICK = {"beat_seconds": 0.2, "dead_seconds": 2.0}


NIGHTLY = os.environ.get("EVAC_NIGHTLY") == "1"
nightly = pytest.mark.skipif(not NIGHTLY, reason="the same over etcd: EVAC_NIGHTLY=1 runs it")


@pytest.fixture(params=["tcpstore", pytest.param("in_etcd", marks=nightly)])
def store(request: pytest.FixtureRequest) -> Address:
    """Each kind of store, served by nobody of the job."""
    found: Address = request.getfixturevalue(request.param)
    return found


@dataclass
class Store:
    """One that no agent serves, and that can lose all it held."""

    address: Address
    lose: Callable[[], None]


@pytest.fixture(params=["tcpstore", "etcd"])
def losing(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "tcpstore":
        port = free_port()
        held = [TCPStore(HOST, port, is_master=True, wait_for_workers=False)]

        def restart() -> None:
            held.clear()
            held.append(TCPStore(HOST, port, is_master=True, wait_for_workers=False))

        yield Store(local(port), restart)
        return
    port = request.getfixturevalue("etcd_port")

    def wipe() -> None:
        body = json.dumps({"key": "AA==", "range_end": "AA=="}).encode()
        asked = urllib.request.Request(f"http://{HOST}:{port}/v3/kv/deleterange", data=body)
        urllib.request.urlopen(asked, timeout=10).close()

    yield Store(local(port, "etcd"), wipe)
    wipe()


def nodes_of(address: Address, names: str, *, host: str = "", maximum: int = 4) -> dict[str, Node]:
    nodes = {
        name: Node(name, address, hosts=name == host, maximum=maximum, conf=QUICK) for name in names
    }
    for node in nodes.values():
        node.start()
    until("the first round", work_together(nodes.values()))
    return nodes


def follower(node: Node) -> Follower:
    assert node.handler is not None
    return node.handler._follower  # pyright: ignore[reportPrivateUsage]


def state(node: Node) -> State:
    return follower(node).state


def end(*nodes: Node) -> None:
    for node in nodes:
        node.finish()
    assert [node.join() for node in nodes] == ["finished"] * len(nodes)


# --- a job that is run again ------------------------------------------------------------------


def test_a_job_that_failed_is_run_again(store: Address) -> None:
    nodes = nodes_of(store, "ab", maximum=2)
    follower(nodes["b"]).view.ended = True
    nodes["b"].die()
    nodes["a"].fail()
    assert isinstance(nodes["a"].join(), WorkerFailed)

    again = [Node(name, store, maximum=2, conf=QUICK).start() for name in "ab"]

    until("it trains", work_together(again))
    end(*again)


def test_a_job_that_failed_fails_its_spares(store: Address) -> None:
    nodes = nodes_of(store, "ab", maximum=2)
    spare = Node("c", store, maximum=2, conf=QUICK).start()
    until("it waits", lambda: spare.handler and spare.handler.waits)

    nodes["a"].fail()

    assert isinstance(nodes["a"].join(), WorkerFailed)
    nodes["b"].finish()
    assert "closed" in str(spare.join())
    assert not spare.rounds


def test_who_was_left_for_dead_closes_no_later_run(store: Address) -> None:
    nodes = nodes_of(store, "ab", maximum=2)
    nodes["a"].fail()
    nodes["a"].join()
    tell(store, Gone(follower(nodes["b"]).view.me.id))

    again = [Node(name, store, maximum=2, conf=QUICK).start() for name in "ac"]

    until("it trains", work_together(again))
    assert "closed" in str(nodes["b"].join())
    assert work_together(again)()
    end(*again)


def test_a_leaver_whose_worker_dies_closes_nothing(store: Address) -> None:
    nodes = nodes_of(store, "abc", maximum=3)
    rest = [nodes["a"], nodes["c"]]

    nodes["b"].fail()  # killed with the notice, and felt before it was read
    depart(store, "b")

    assert isinstance(nodes["b"].join(), WorkerFailed)
    until("two go on", work_together(rest))
    end(*rest)


# --- a store that comes back empty ------------------------------------------------------------


def test_a_store_that_lost_all_loses_no_departure(losing: Store) -> None:
    nodes = nodes_of(losing.address, "abc")

    losing.lose()
    depart(losing.address, "b")  # whoever comes first

    rest = [nodes["a"], nodes["c"]]
    until("two go on", work_together(rest))
    assert nodes["b"].join() == 0
    losing.lose()
    until("it is given back", lambda: state(nodes["a"]).term == 2 == state(nodes["c"]).term)
    depart(losing.address, "c")
    new = [Node("d", losing.address, maximum=4, conf=QUICK).start()]
    until("and again", work_together([nodes["a"], *new]))
    assert nodes["c"].join() == 0
    end(nodes["a"], *new)


def test_newcomers_to_an_empty_store_begin_no_second_job(losing: Store) -> None:
    nodes = nodes_of(losing.address, "ab")

    losing.lose()
    new = [Node(name, losing.address, maximum=4, conf=QUICK).start() for name in "cd"]

    until("all are in one", work_together([*nodes.values(), *new]))
    end(*nodes.values(), *new)


# --- the host leaves --------------------------------------------------------------------------


def test_a_host_that_comes_back_to_its_old_place_joins_the_job() -> None:
    """... and so does a replacement that was told of no other place."""
    address = local(free_port())
    nodes = nodes_of(address, "abc", host="a")
    depart(address, "a")
    rest = [nodes["b"], nodes["c"]]
    until("two go on", work_together(rest))
    assert nodes["a"].join() == 0

    patient = {**QUICK, "return_seconds": 30.0}
    back = Node("a", address, boot="two", hosts=True, maximum=4, conf=patient).start()
    new = Node("d", address, maximum=4, conf=patient).start()

    until("four work", work_together([*rest, back, new]))
    assert {one.world for node in (back, new) for one in node.rounds} <= {3, 4}
    assert where(back) == where(rest[0])
    end(*rest, back, new)


def test_a_second_job_at_the_old_place_ends_in_the_first() -> None:
    address = local(free_port())
    nodes = nodes_of(address, "abc", host="a")
    depart(address, "a")
    rest = [nodes["b"], nodes["c"]]
    until("two go on", work_together(rest))
    assert nodes["a"].join() == 0

    # Too early to have been told: they may even have begun.
    back = Node("a", address, boot="two", hosts=True, maximum=4, conf=QUICK).start()
    new = Node("d", address, maximum=4, conf=QUICK).start()

    until("four work", work_together([*rest, back, new]))
    end(*rest, back, new)


def test_a_host_that_stays_after_all_follows_the_log_that_has_moved() -> None:
    address = local(free_port())
    nodes = nodes_of(address, "abc", host="a")
    slow = nodes["a"]
    slow.hold()  # its workers take their time to stop
    depart(address, "a")
    until("the log has moved", lambda: where(nodes["b"]) == where(nodes["c"]) != address)
    depart(address, "a", word="staying", sequence=2)
    until("a knows", lambda: follower(slow).stays)
    slow.go()

    # The round that they were in counts as well: nobody needs to have left it by then.
    until("three work", work_together(nodes.values()))
    until("a follows it", lambda: len({where(node) for node in nodes.values()}) == 1)
    until("three work on", work_together(nodes.values()))
    end(*nodes.values())


def test_a_leaving_host_hears_that_all_others_know() -> None:
    for _ in range(10 if NIGHTLY else 1):
        address = local(free_port())
        nodes = nodes_of(address, "abc", host="a")
        host = follower(nodes["a"])
        rest = [nodes["b"], nodes["c"]]
        depart(address, "a")
        assert nodes["a"].join() == 0
        assert host.state.has_met(host.state.survivors)
        until("two go on", work_together(rest))
        end(*rest)


def test_the_agent_beside_a_host_that_ends_takes_over() -> None:
    address = local(free_port())
    nodes = [
        Node("n", address, minimum=1, hosts=host, maximum=2, conf=QUICK).start()
        for host in (True, False)
    ]
    until("the first round", work_together(nodes))
    host, twin = nodes

    host.die()
    host.join()
    assert host.left is not None
    host.left._parting._at_exit()  # pyright: ignore[reportPrivateUsage] # as a signal's SystemExit does

    until("it goes on", lambda: work_together([twin])() and where(twin) != address)
    end(twin)


def test_a_host_that_was_left_for_dead_serves_again_from_what_is_now() -> None:
    address = local(free_port())
    nodes = nodes_of(address, "abcd", host="a")
    depart(address, "a")
    rest = [nodes[name] for name in "bcd"]
    until("three go on", work_together(rest))
    nodes["a"].join()
    first = next(node for node in rest if node.handler and node.handler.serves)
    tell(where(first), Gone(follower(first).view.me.id))
    until("it moves", lambda: not (first.handler and first.handler.serves))
    until("three work", work_together(rest))
    second = next(node for node in rest if node.handler and node.handler.serves)
    assert second is not first
    others = [node for node in rest if node is not second]

    depart(where(second), second.name)

    until("two go on", work_together(others))
    assert second.join() == 0
    assert len({where(node) for node in others}) == 1
    end(*others)


def test_where_most_cannot_reach_the_next_host_nobody_goes_on_alone() -> None:
    address = local(free_port())
    nodes = {
        name: Node(name, address, hosts=name == "a", minimum=1, maximum=4, conf=QUICK).start()
        for name in "abcd"
    }
    until("the first round", work_together(nodes.values()))
    heir = next(one for one in state(nodes["a"]).round.agents if one.node != "a")
    cut = [node for node in nodes.values() if node.name not in ("a", heir.node)]
    for node in cut:
        view = follower(node).view
        view.open = Cut(view.open, heir.standby)

    depart(address, "a")

    rest = [node for node in nodes.values() if node.name != "a"]
    until("three go on", work_together(rest))
    assert {one.world for node in rest for one in node.rounds} == {4, 3}
    end(*rest)


@dataclass(frozen=True)
class Cut:
    """Opens all but one place."""

    open: Callable[[Address], Keys]
    place: str

    def __call__(self, address: Address) -> Keys:
        if address.endpoint == self.place:
            raise Unreachable(address.endpoint, "timed out")
        return self.open(address)


def tell(address: Address, event: Gone) -> None:
    with closing(open_keys(address)) as keys:
        found = log.snapshot(keys)
        assert found is not None
        log.append(keys, found.at, encode(event))
