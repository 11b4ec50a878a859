import os
import pwd
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from evac.torch.identity import owner, owner_name
from evacd.workloads import policy


@given(st.none() | st.text(max_size=70), st.integers(0, 2**32 - 1))
def test_with_and_without_a_daemon_generations_go_to_one_place(user: str | None, uid: int) -> None:
    assert owner_name(user, uid) == policy.owner_name(user, uid)


def test_a_pod_s_jobs_lie_under_its_namespace_as_evacd_puts_them(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("team-a")
    none = tmp_path / "none"

    assert owner({"EVAC_NAMESPACE": "team-b"}, account=tmp_path) == "team-b"
    assert owner({}, account=tmp_path) == "team-a"
    assert owner({}, account=none) == owner_name(pwd.getpwuid(os.geteuid()).pw_name, os.geteuid())
    assert owner({"EVAC_NAMESPACE": "../x"}, account=none) == owner({}, account=none)
