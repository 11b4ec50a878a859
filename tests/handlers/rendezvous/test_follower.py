"""One agent's view of its job: what it leaves behind, what wakes it, and how often it asks."""

import threading
from collections.abc import Callable

import pytest

from evac.rendezvous import log
from evac.rendezvous.address import Address
from evac.rendezvous.events import Gone, Leave
from evac.rendezvous.follower import Follower
from evac.rendezvous.keys import Keys, Unreachable
from evac.rendezvous.pulse import Pulses
from evac.rendezvous.reader import Reader
from evac.rendezvous.snapshot import Snapshot, dump
from evac.rendezvous.state import Agent, State
from evac.rendezvous.torch_keys import TorchKeys, connect
from evac.rendezvous.view import View
from evac.rendezvous.writer import Writer
from tests.handlers.rendezvous.nodes import open_keys, until


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


def test_a_reader_that_begins_to_wait_for_what_is_gone_by_then_is_woken(tcpstore: Address) -> None:
    """It had looked where it goes on, and was stopped for so long that others have deleted that far."""
    view = View(tcpstore, Agent("a", "node-a", "boot"), open_keys, State())
    reading, writing = open_keys(tcpstore), open_keys(tcpstore)
    view.begin(reading)
    view.connected()
    # It is about to wait ...
    awaited = view.await_next()
    # ... while the others go on ...
    at = awaited + 9
    writing.put(log.SNAPSHOT, dump(Snapshot(at, at, State(), view.service)))
    pulses = Pulses("a", 0.0, 1e6)
    writer = Writer(view, pulses, lambda: 0.0, denied_seconds=0.0)

    def beat() -> bool:
        writer._beat(writing, view.line)  # pyright: ignore[reportPrivateUsage]
        return not waits.is_alive()

    waits = threading.Thread(target=reading.wait, args=(log.entry(awaited),))
    # ... of which its own agent learns, and says so too early.
    beat()
    assert view.position == at
    waits.start()

    until("it wakes", beat)
    waits.join()
    view.awaited = None
    beat()
    assert (view.position, writing.get([log.entry(awaited), log.entry(at)])) == (at, [None, None])


class Deaf(TorchKeys):
    """Of a store that breaks off whoever waits."""

    def wait(self, key: str) -> None:
        raise Unreachable("store", "broken off")


class Hurried(View):
    """Rests in no time; *passes* is called instead, until it says that this is enough."""

    def __init__(self, address: Address, passes: Callable[[float], bool]) -> None:
        def opened(there: Address) -> Keys:
            return Deaf(connect(there.host, there.port, seconds=10), there.prefix)

        super().__init__(address, Agent("a", "node-a", "boot"), opened, State())
        self._passes = passes

    def rest(self, seconds: float) -> None:
        self.ended = not self._passes(seconds)


@pytest.mark.parametrize(
    ("lasts", "pauses"), [(0.0, [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]), (2.0, [0.2] * 6)]
)
def test_a_store_that_breaks_off_at_once_is_asked_more_and_more_seldom(
    tcpstore: Address, lasts: float, pauses: list[float]
) -> None:
    """... and one that has answered for a while is asked soon."""
    now, rested = 0.0, list[float]()

    def passes(seconds: float) -> bool:
        rested.append(seconds)
        return len(rested) < len(pauses)

    def clock() -> float:
        nonlocal now
        now += lasts
        return now

    view = Hurried(tcpstore, passes)
    Reader(view, None, clock, patience_seconds=10.0, denied_seconds=5.0).run()

    assert rested == pauses


class Lossy(TorchKeys):
    """Of a store that takes an entry and cannot say so, the first time."""

    lost = False

    def create(self, key: str, value: bytes) -> bytes:
        found = super().create(key, value)
        if not self.lost:
            self.lost = True
            raise Unreachable("store", "request timed out")
        return found


@pytest.mark.parametrize("reads", [False, True])
def test_what_was_written_and_not_confirmed_is_said_once(tcpstore: Address, *, reads: bool) -> None:
    """Who was taken for dead, and is back by the second time, would be told to go again."""
    store = connect(tcpstore.host, tcpstore.port, seconds=10)
    keys, reading = Lossy(store, tcpstore.prefix), open_keys(tcpstore)
    view = View(tcpstore, Agent("a", "node-a", "boot"), open_keys, State())
    view.begin(reading)
    with pytest.raises(Unreachable):
        view.try_append(keys, Gone("b"), "a:1")
    if reads:
        view.catch_up(reading)

    assert view.try_append(keys, Gone("b"), "a:1") is not None

    assert len(list(log.read_on(reading, 0))) == 1
    view.catch_up(reading)
    # Said again later, it is another word.
    assert view.try_append(keys, Gone("b"), "a:2") == 1
    assert len(list(log.read_on(reading, 0))) == 2
