"""Who is silent is found, by few looks; and nobody who only seemed so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.rendezvous.events import Confirm, Join, Open
from evac.rendezvous.pulse import Pulses
from evac.rendezvous.rounds import after
from evac.rendezvous.state import State

BEAT, DEAD = 5.0, 15.0


def of(count: int) -> tuple[list[str], State]:
    """So many agents that train together."""
    names, state = [f"n{number:03d}" for number in range(count)], State()
    events = [Join(name, name, "boot", 1, count) for name in names]
    for event in (*events, Open(names[0], 1, "h:1"), *(Confirm(name, 1) for name in names)):
        state = after(state, event)
    assert state.round.number == 1
    return names, state


def found(count: int, dead: set[str], seconds: float) -> dict[str, float]:
    """Who of them is found silent, and when, where *dead* end at 0."""
    names, state = of(count)
    pulses = {name: Pulses(name, BEAT, DEAD) for name in names if name not in dead}
    shown: dict[str, bytes | None] = dict.fromkeys(names, b"0")
    told: dict[str, float] = {}
    now = 0.0
    while now <= seconds:
        for name, pulse in pulses.items():
            shown[name] = pulse.beat(now)
            watched = pulse.watched(state)
            for gone in pulse.silent({one: shown[one] for one in watched}, now):
                told.setdefault(gone, now)
        now += BEAT
    return told


@given(st.integers(2, 24), st.data())
def test_however_many_are_lost_at_once_all_are_found_within_two_times(
    count: int, data: st.DataObject
) -> None:
    names, _ = of(count)
    dead = data.draw(st.sets(st.sampled_from(names), max_size=count - 1))

    told = found(count, dead, 60.0)

    assert told.keys() == dead
    assert all(at <= 2 * DEAD for at in told.values())


@pytest.mark.parametrize("count", [2, 4, 100])
def test_while_all_live_each_looks_at_few(count: int) -> None:
    names, state = of(count)
    pulse = Pulses(names[0], BEAT, DEAD)
    for number in range(10):
        pulse.beat(number * BEAT)
        watched = pulse.watched(state)
        assert len(watched) == min(3, count - 1)
        assert pulse.silent(dict.fromkeys(watched, b"%d" % number), number * BEAT) == []


def test_a_watcher_that_was_stopped_itself_begins_to_count_anew() -> None:
    names, state = of(3)
    pulse = Pulses(names[0], BEAT, DEAD)
    for now in (0.0, 5.0, 600.0):
        pulse.beat(now)
        assert pulse.silent(dict.fromkeys(pulse.watched(state), b"1"), now) == []


@pytest.mark.parametrize(("away", "found"), [(0.2, [3]), (BEAT, [])])
def test_a_wait_that_is_broken_off_now_and_then_hides_no_silence(
    away: float, found: list[int]
) -> None:
    """... and after one in which nobody could be heard all begin to count anew."""
    names, state = of(2)
    pulse = Pulses(names[0], BEAT, DEAD)
    told = list[int]()
    for number in range(4):
        now = number * BEAT
        pulse.beat(now)
        if pulse.silent(dict.fromkeys(pulse.watched(state), b"1"), now):
            told.append(number)
        pulse.back(away)

    assert told == found
