"""What a person reads while agents wait."""

from evac.rendezvous.events import Call, Close, Confirm, Join, Open
from evac.rendezvous.rounds import after
from evac.rendezvous.state import State
from evac.rendezvous.waiting import waits_for


def three(*more: Open | Confirm | Call | Close, minimum: int = 2, maximum: int = 3) -> State:
    state = State()
    joins = [Join(one, f"node-{one}", "boot", minimum, maximum) for one in "abc"]
    for event in (*joins, *more):
        state = after(state, event)
    return state


def test_a_round_that_forms_is_told_by_its_number_its_place_and_who_is_late() -> None:
    assert waits_for(three(), "") == "waiting for node-a to serve the store of round 1"

    state = three(Open("a", 1, "h:7"), Confirm("a", 1), Confirm("c", 1))

    assert waits_for(state, "") == "waiting for node-b to reach the store of round 1 at h:7"
    assert waits_for(state, "", "h:7: no route").endswith("at h:7; from here: h:7: no route")


def test_too_few_and_no_store_are_told() -> None:
    assert "waiting for 1 more node(s): 3 here" in waits_for(three(minimum=4, maximum=4), "")
    assert (
        waits_for(three(), "h:1: no answer") == "waiting for the rendezvous store: h:1: no answer"
    )
