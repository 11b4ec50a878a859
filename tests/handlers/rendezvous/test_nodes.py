"""Departures, replacements and losses, as the agents of real stores live through them."""

import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from evac.rendezvous import log
from evac.rendezvous.address import Address
from evac.rendezvous.events import Join, encode
from evac.rendezvous.exit_barrier import finishing
from tests.handlers.rendezvous.nodes import (
    Node,
    depart,
    local,
    open_keys,
    until,
    where,
    work_together,
)
from tests.services.process import answers, free_port

NIGHTLY = os.environ.get("EVAC_NIGHTLY") == "1"


def start(address: Address, names: str, *, host: str = "", maximum: int = 3) -> dict[str, Node]:
    nodes = {name: Node(name, address, hosts=name == host, maximum=maximum) for name in names}
    for node in nodes.values():
        node.start()
    until("the first round", work_together(nodes.values()))
    return nodes


@contextmanager
def agent_process(port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Node a, which serves the store, as a process that can be killed."""
    code = (
        "from tests.handlers.rendezvous.nodes import Node, local\n"
        f"print(Node('a', local({port}), hosts=True).start().join())"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            until("it serves", answers(port))
            yield process
        finally:
            process.kill()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def end(*nodes: Node) -> None:
    for node in nodes:
        node.finish()
    assert [node.join() for node in nodes] == ["finished"] * len(nodes)


def test_who_departs_ends_well_and_the_others_go_on(store: Address) -> None:
    nodes = start(store, "abc")

    depart(store, "b")

    until("two go on", work_together([nodes["a"], nodes["c"]]))
    assert nodes["b"].join() == 0
    end(nodes["a"], nodes["c"])


def test_a_replacement_joins_in_the_next_round(store: Address) -> None:
    nodes = start(store, "abc")
    depart(store, "c")
    until("two go on", work_together([nodes["a"], nodes["b"]]))

    new = Node("d", store).start()

    until("three again", work_together([nodes["a"], nodes["b"], new]))
    assert new.rounds[0].rank == 2
    end(nodes["a"], nodes["b"], new)


def test_the_first_rank_departs(store: Address) -> None:
    nodes = start(store, "abc")
    first = next(node for node in nodes.values() if node.rounds[0].rank == 0)
    rest = [node for node in nodes.values() if node is not first]

    depart(store, first.name)

    until("two go on", work_together(rest))
    end(*rest)


def test_two_depart_at_once(store: Address) -> None:
    nodes = start(store, "abcd", maximum=4)

    depart(store, "a", "d")

    until("two go on", work_together([nodes["b"], nodes["c"]]))
    assert [nodes[name].join() for name in "ad"] == [0, 0]
    end(nodes["b"], nodes["c"])


def test_the_host_of_the_store_departs_and_the_store_moves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = local(free_port())
    nodes = start(address, "abc", host="a")

    depart(address, "a")

    rest = [nodes["b"], nodes["c"]]
    until("two go on", work_together(rest))
    assert nodes["a"].join() == 0
    moved = {where(node) for node in rest}
    assert len(moved) == 1
    assert moved != {address}
    # ... and again, from where it is now, once a third has come.
    third = Node("d", moved.pop(), hosts=False).start()
    until("three again", work_together([*rest, third]))
    here = where(third)
    host = next(n for n in rest if n.handler and n.handler.serves)
    depart(here, host.name)
    left = [node for node in (*rest, third) if node is not host]
    until("two go on once more", work_together(left))
    end(*left)
    # Who left was told, in the log that the others had left: it did not wait in vain.
    assert "going on without them" not in caplog.text


def test_the_host_dies_without_a_word() -> None:
    """As where it is killed at its notice: the first survivor serves the log from what it knows."""
    port = free_port()
    with agent_process(port) as host:
        nodes = {name: Node(name, local(port)).start() for name in "bc"}
        until("three work", lambda: all(n.now and n.now.world == 3 for n in nodes.values()))
        host.kill()
        host.wait()

        until("two go on", work_together(nodes.values()))

    assert len({where(node) for node in nodes.values()} - {local(port)}) == 1
    third = Node("d", where(nodes["b"])).start()
    until("three again", work_together([*nodes.values(), third]))
    end(*nodes.values(), third)


def test_the_host_and_another_depart_at_once(caplog: pytest.LogCaptureFixture) -> None:
    address = local(free_port())
    nodes = start(address, "abcd", host="a", maximum=4)

    depart(address, "a", "b")

    until("two go on", work_together([nodes["c"], nodes["d"]]))
    assert [nodes[name].join() for name in "ab"] == [0, 0]
    end(nodes["c"], nodes["d"])
    assert "going on without them" not in caplog.text


def test_a_notice_while_a_rendezvous_is_under_way(store: Address) -> None:
    nodes = {name: Node(name, store, conf={"call_seconds": 1.0}) for name in "ab"}
    for node in nodes.values():
        node.start()
    until("both wait", lambda: all(n.handler and n.handler.waits for n in nodes.values()))

    depart(store, "a")

    assert nodes["a"].join() == 0
    new = Node("c", store).start()
    until("two others", work_together([nodes["b"], new]))
    end(nodes["b"], new)


def test_the_same_notice_twice_is_one(store: Address) -> None:
    nodes = start(store, "abc")
    depart(store, "b")
    depart(store, "b", sequence=2)
    rest = [nodes["a"], nodes["c"]]
    until("two go on", work_together(rest))
    depart(store, "b", word="durable", sequence=3)
    new = Node("d", store).start()

    until("three again", work_together([*rest, new]))

    assert [len(node.rounds) for node in rest] == [3, 3]
    end(*rest, new)


def test_a_notice_that_is_taken_back_costs_a_round_at_most(store: Address) -> None:
    nodes = start(store, "abc", maximum=4)
    depart(store, "b", word="staying", sequence=2)
    depart(store, "b", sequence=1)  # came late, was said before

    new = Node("d", store, maximum=4).start()  # proof that all have read so far
    until("the spare is heard", work_together([*nodes.values(), new]))

    assert {len(node.rounds) for node in nodes.values()} == {2}
    end(*nodes.values(), new)


def test_nodes_of_other_jobs_and_earlier_boots_are_none_of_ours(store: Address) -> None:
    nodes = start(store, "abc")
    depart(store, "elsewhere")
    depart(store, "b", boot="an earlier one")
    depart(store, "c")

    until("only c goes", work_together([nodes["a"], nodes["b"]]))

    end(nodes["a"], nodes["b"])


def test_the_same_name_after_a_reboot_is_another_node(store: Address) -> None:
    nodes = start(store, "abc")
    depart(store, "b")
    until("two go on", work_together([nodes["a"], nodes["c"]]))

    back = Node("b", store, boot="the next one").start()

    until("it is back", work_together([nodes["a"], nodes["c"], back]))
    end(nodes["a"], nodes["c"], back)


def test_an_agent_that_starts_on_a_departing_node_ends_at_once(store: Address) -> None:
    nodes = start(store, "ab")
    depart(store, "c")

    assert Node("c", store).start().join() == 0

    end(*nodes.values())


def test_several_agents_of_a_departing_node_all_leave(store: Address) -> None:
    nodes = [Node(name, store, maximum=4) for name in ("a", "b", "twin", "twin")]
    for node in nodes:
        node.start()
    until("the first round", work_together(nodes))

    depart(store, "twin")

    until("two go on", work_together(nodes[:2]))
    assert [node.join() for node in nodes[2:]] == [0, 0]
    end(*nodes[:2])


def test_too_few_survivors_wait_until_one_comes(
    store: Address, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = start(store, "ab")
    depart(store, "b")
    assert nodes["b"].join() == 0
    until("it says so", lambda: "waiting for 1 more node" in caplog.text)

    new = Node("c", store).start()

    until("two again", work_together([nodes["a"], new]))
    end(nodes["a"], new)


def test_a_spare_that_was_never_needed_ends_well(store: Address) -> None:
    nodes = start(store, "abc")
    spare = Node("d", store).start()
    until("it waits", lambda: spare.handler and spare.handler.waits)

    end(*nodes.values())

    assert spare.join() == 0


def test_the_last_to_leave_takes_all_keys_with_it(store: Address) -> None:
    nodes = start(store, "abc")
    depart(store, "b")
    rest = [nodes["a"], nodes["c"]]
    until("two go on", work_together(rest))

    end(*rest)

    every = [log.SNAPSHOT, *(log.entry(n) for n in range(64))]
    with closing(open_keys(store)) as keys:
        assert keys.get(every) == [None] * 65


def test_who_falls_silent_is_left_behind() -> None:
    server = local(free_port())
    quick = {"beat_seconds": 0.1, "dead_seconds": 0.6}
    nodes = {name: Node(name, server, hosts=name == "a", conf=quick) for name in "abc"}
    for node in nodes.values():
        node.start()
    until("the first round", work_together(nodes.values()))

    handler = nodes["c"].handler
    assert handler is not None
    # As a process that was stopped: nothing is said any more.
    handler._follower.view.ended = True  # pyright: ignore[reportPrivateUsage]

    until("two go on", work_together([nodes["a"], nodes["b"]]))
    nodes["c"].finish()
    end(nodes["a"], nodes["b"])


def test_a_store_that_dies_stops_nobody_who_works() -> None:
    address = local(free_port())
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__

    server = TCPStore("127.0.0.1", address.port, is_master=True, wait_for_workers=False)
    nodes = start(address, "ab")

    del server
    until("they notice", lambda: all(n.handler and n.handler.trouble for n in nodes.values()))

    assert all(node.works for node in nodes.values())
    for node in nodes.values():
        node.finish()
    assert [node.join() for node in nodes.values()] == ["finished", "finished"]


@pytest.mark.parametrize("seed", range(5 if NIGHTLY else 1))
def test_departures_at_random_leak_nothing(store: Address, seed: int) -> None:
    """3 to 2 to 3, over and over; then as few threads, files and keys as before."""
    chance = random.Random(seed)
    rounds = 50 if NIGHTLY else 5
    nodes = list(start(store, "abc").values())
    depart(store, nodes[0].name)
    until("warm", work_together(nodes[1:]))
    nodes = [*nodes[1:], Node("w", store).start()]
    until("warm", work_together(nodes))
    gc.collect()
    threads, files = threading.active_count(), open_files()

    for number in range(rounds):
        leaver = chance.choice(nodes)
        depart(store, leaver.name)
        rest = [node for node in nodes if node is not leaver]
        until(f"two in round {number}", work_together(rest))
        assert leaver.join() == 0
        nodes = [*rest, Node(f"n{number}", store).start()]
        until(f"three in round {number}", work_together(nodes))

    until("no thread is left", lambda: threading.active_count() <= threads)
    # A handler knows its follower, and the other way round.
    until("no file is left", lambda: gc.collect() >= 0 and open_files() <= files + 3)
    keys = open_keys(store)
    found = log.snapshot(keys)
    assert found is not None
    alive = [n for n in range(found.at + 64) if keys.get([log.entry(n)])[0] is not None]
    assert min(alive) >= found.since
    assert len(alive) < 64
    keys.close()
    end(*nodes)


def test_whose_time_is_over_leaves_and_closes_nothing(store: Address) -> None:
    hasty = Node("a", store, conf={"join_seconds": 0.5}).start()

    assert "waiting for 1 more node" in str(hasty.join())

    nodes = start(store, "bc")
    end(*nodes.values())


def test_who_neither_serves_a_round_nor_reaches_it_holds_nobody_up(tcpstore: Address) -> None:
    """It is the first: another serves the next round, and the one after that goes without it."""
    with closing(open_keys(tcpstore)) as keys:
        log.append(keys, 0, encode(Join("x", "node-x", "boot", 2, 3)))
    nodes = [Node(name, tcpstore, conf={"confirm_seconds": 0.3}).start() for name in "bc"]

    until("they go on", work_together(nodes))

    end(*nodes)


def test_who_has_finished_does_not_wait_for_who_leaves_instead(tcpstore: Address) -> None:
    nodes = [
        Node(name, tcpstore, barrier=True, conf={"meet_seconds": 0.5}).start() for name in "abc"
    ]
    until("the first round", work_together(nodes))
    nodes[0].finish()
    nodes[1].finish()
    until("one waits", lambda: finishing(nodes[2].store()))

    depart(tcpstore, "c")

    assert [node.join() for node in nodes] == ["finished", "finished", 0]
    assert {len(node.rounds) for node in nodes} == {1}
