from hypothesis import given
from hypothesis import strategies as st

from evac.torch.identity import owner_name
from evacd.workloads import policy


@given(st.none() | st.text(max_size=70), st.integers(0, 2**32 - 1))
def test_with_and_without_a_daemon_generations_go_to_one_place(user: str | None, uid: int) -> None:
    assert owner_name(user, uid) == policy.owner_name(user, uid)
