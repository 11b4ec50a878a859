"""One agent's view of its job: what it leaves behind."""

import threading

import pytest

from evac.rendezvous.address import Address
from evac.rendezvous.events import Leave
from evac.rendezvous.follower import Follower
from evac.rendezvous.keys import Keys
from evac.rendezvous.state import Agent
from tests.handlers.rendezvous.nodes import open_keys


def test_who_has_left_has_no_thread_in_the_store_any_more(store: Address) -> None:
    """One that came back out of torch while Python ends would abort the process."""
    before = set(threading.enumerate())
    follower = Follower(store, Agent("a", "node-a", "boot"), open_keys)
    follower.start()
    assert follower.wait(lambda _: follower.connected, 60.0)

    follower.say(Leave("a"))
    follower.close(60.0)

    assert set(threading.enumerate()) <= before


def test_a_fault_of_ours_ends_no_thread(
    tcpstore: Address, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was not foreseen, the first time that each of them opens the store."""
    faults = {"evac-rdzv-read", "evac-rdzv-write"}

    def open_badly(address: Address) -> Keys:
        if (name := threading.current_thread().name) in faults:
            faults.remove(name)
            raise KeyError(name)
        return open_keys(address)

    follower = Follower(tcpstore, Agent("a", "node-a", "boot"), open_badly)
    follower.start()
    assert follower.wait(lambda _: follower.connected, 60.0)

    follower.say(Leave("a"))
    follower.close(60.0)

    assert follower.idle
    assert not faults
    assert "reading the rendezvous log failed" in caplog.text
    assert "writing to the rendezvous log failed" in caplog.text
