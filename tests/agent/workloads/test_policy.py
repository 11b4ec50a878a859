from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.generation import NAME
from evac.wire import Register
from evacd.workloads.policy import Admission, Refusal, admit, owner_name, rights_of
from evacd.workloads.settings import UserLimits
from tests.agent.workloads.peers import MIB, settings

ALICE = settings(Path("/"), allow_users=("alice", "1002"))


@given(st.none() | st.text(max_size=80), st.integers(0, 2**32 - 1))
def test_an_owner_is_always_a_name_that_a_path_can_hold(user: str | None, uid: int) -> None:
    assert NAME.fullmatch(owner_name(user, uid))


@given(st.text(max_size=70), st.text(max_size=70))
def test_two_users_never_share_a_prefix(one: str, other: str) -> None:
    if one != other:
        names = owner_name(one, 123456), owner_name(other, 654321)
        # A user may be called what another's changed name looks like only on purpose.
        assert names[0] != names[1] or {one, other} & set(names)


def test_the_prefix_is_owner_and_job() -> None:
    answer = admit(_register(), user="alice", uid=1001, aboard=0, settings=ALICE)

    assert answer == Admission("alice/train", share=ALICE.memory_bytes)


@pytest.mark.parametrize(
    ("message", "user", "uid", "aboard", "reason"),
    [
        ({}, "mallory", 1003, 0, "user mallory may not register"),
        ({}, None, 1003, 0, "user 1003 may not register"),
        ({"priority": 1001}, "alice", 1001, 0, "priority 1001 is above 1000"),
        ({"rank": 2}, "alice", 1001, 0, "rank 2 is outside a world of 2"),
        ({"mode": "sometimes"}, "alice", 1001, 0, "mode 'sometimes' is unknown"),
        ({"mode": "callback"}, "alice", 1001, 0, "need_seconds is 0"),
        ({"peers": ("node-1:9912", "node-2")}, "alice", 1001, 0, "peer 'node-2' is none"),
        ({"peers": ("node-1:99999",)}, "alice", 1001, 0, "expected host:port"),
        ({}, "alice", 1001, 1024, "1024 workloads on board"),
    ],
)
def test_a_refusal_says_why(
    message: dict[str, object], user: str | None, uid: int, aboard: int, reason: str
) -> None:
    register = replace(_register(), **message)  # type: ignore[arg-type]  # a table of fields

    answer = admit(register, user=user, uid=uid, aboard=aboard, settings=ALICE)

    assert isinstance(answer, Refusal)
    assert reason in answer.reason


def test_a_uid_may_be_allowed_where_it_has_no_name() -> None:
    answer = admit(_register(), user=None, uid=1002, aboard=0, settings=ALICE)

    assert isinstance(answer, Admission)
    assert answer.unit == "uid-1002/train"


def test_a_user_s_own_limits_count_under_its_name_or_its_uid() -> None:
    own = UserLimits(max_priority=10, max_bytes=MIB, prefix="team/alice")
    for users in ({"alice": own}, {"1001": own}, {"alice": own, "1001": UserLimits()}):
        limited = replace(ALICE, users=users)

        high = admit(_register(11), user="alice", uid=1001, aboard=0, settings=limited)
        answer = admit(_register(10), user="alice", uid=1001, aboard=0, settings=limited)

        assert isinstance(high, Refusal)
        assert high.reason == ("priority 11 is above 10, the highest that user alice may ask for")
        assert answer == Admission("team/alice/train", share=MIB)
        other = admit(_register(11), user=None, uid=1002, aboard=0, settings=limited)
        assert other == Admission("uid-1002/train", share=ALICE.memory_bytes)


@given(
    st.none() | st.integers(-2000, 2000),
    st.none() | st.integers(1, 2**40),
    st.integers(1, 2**40),
    st.integers(1, 2**40),
)
def test_nobody_may_more_than_everybody(
    priority: int | None, nbytes: int | None, everybody: int, budget: int
) -> None:
    node = replace(
        ALICE,
        memory_bytes=budget,
        user_bytes=everybody,
        users={"alice": UserLimits(max_priority=priority, max_bytes=nbytes)},
    )

    rights = rights_of("alice", 1001, node)

    assert rights.max_priority <= node.max_priority
    assert rights.share <= budget
    assert rights.share == min(everybody if nbytes is None else nbytes, budget)


def _register(priority: int = 0) -> Register:
    return Register(job="train", rank=0, world=2, priority=priority)
