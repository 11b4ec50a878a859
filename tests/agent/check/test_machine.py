"""Sockets, state, memory and files, on real directories and sockets."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from evacd.check import Verdict, checks
from evacd.check.machine import (
    check_daemon,
    check_files,
    check_huge_pages,
    check_memory,
    check_policy,
    check_sockets,
    check_spill,
    check_state,
    held,
    judge_memory,
)
from evacd.clock import SystemClock
from evacd.config import (
    Budget,
    Config,
    MemoryConfig,
    PeerConfig,
    PolicyConfig,
    SocketConfig,
    StateConfig,
    UserPolicy,
    load,
)
from tests.agent.daemon.nodes import node_at

as_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


@pytest.fixture
def sockets(tmp_path: Path) -> SocketConfig:
    folder = tmp_path / "run"
    return SocketConfig(workload=folder / "evacd.sock", admin=folder / "admin.sock")


def test_a_directory_that_can_be_made_is_enough_and_is_not_made(sockets: SocketConfig) -> None:
    assert check_sockets(sockets).verdict is Verdict.OK
    assert not sockets.workload.parent.exists()


@pytest.mark.parametrize(("mode", "verdict"), [(0o777, Verdict.FAIL), (0o1777, Verdict.OK)])
def test_a_directory_where_anybody_may_replace_the_socket_fails(
    sockets: SocketConfig, mode: int, verdict: Verdict
) -> None:
    sockets.workload.parent.mkdir()
    sockets.workload.parent.chmod(mode)

    assert check_sockets(sockets).verdict is verdict


def test_a_file_in_place_of_the_directory_fails(sockets: SocketConfig) -> None:
    sockets.workload.parent.write_text("")

    assert "not a directory" in check_sockets(sockets).detail


def test_a_dangling_link_in_place_of_the_directory_fails(sockets: SocketConfig) -> None:
    sockets.workload.parent.symlink_to("/nowhere/at/all")

    assert "not a directory" in check_sockets(sockets).detail


@as_user
def test_a_directory_without_write_permission_fails(sockets: SocketConfig) -> None:
    sockets.workload.parent.mkdir(mode=0o500)

    assert "not writable" in check_sockets(sockets).detail


def test_what_no_kernel_could_bind_fails(sockets: SocketConfig, tmp_path: Path) -> None:
    assert "longer" in check_sockets(replace(sockets, admin=tmp_path / ("a" * 108))).detail
    assert "too" in check_sockets(replace(sockets, admin=sockets.workload)).detail
    assert "no group" in check_sockets(replace(sockets, admin_group="no-such-group")).detail


def test_a_running_daemon_is_told_from_a_dead_one(sockets: SocketConfig) -> None:
    sockets.workload.parent.mkdir()
    assert check_daemon(sockets).detail == "none is running"

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(sockets.workload))
        server.listen()
        assert "is listening" in check_daemon(sockets).detail

    dead = check_daemon(sockets)
    assert (dead.verdict, "dead one" in dead.detail) == (Verdict.OK, True)


def test_something_else_on_the_socket_path_is_a_warning(sockets: SocketConfig) -> None:
    sockets.workload.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(sockets.workload))
        server.listen()

        assert check_daemon(sockets).verdict is Verdict.WARN


def test_a_missing_state_directory_is_made(tmp_path: Path) -> None:
    config = StateConfig(dir=tmp_path / "a" / "b")

    assert check_state(config).verdict is Verdict.OK
    assert list(config.dir.iterdir()) == []


def test_a_state_directory_that_cannot_be_fails_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/evac")):
        finding = check_state(StateConfig(dir=path))
        assert finding.verdict is Verdict.FAIL
        assert finding.detail.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("budget", "allowed", "verdict"),
    [
        (50, None, Verdict.OK),
        (50, 60, Verdict.OK),
        (50, 50, Verdict.FAIL),
        # Nor is there room for what the kernel keeps of so many pages.
        (50, 50.3, Verdict.FAIL),
        (95, None, Verdict.WARN),
        (100, None, Verdict.FAIL),
    ],
)
def test_a_budget_that_is_not_there_fails(
    budget: int, allowed: float | None, verdict: Verdict
) -> None:
    limit = None if allowed is None else int(allowed * 2**30)
    assert judge_memory(budget * 2**30, 100 * 2**30, limit).verdict is verdict


def test_what_a_daemon_holds_is_there_for_it(tmp_path: Path) -> None:
    """Else a check beside a daemon whose slots are full would find too little memory for them."""
    for node in node_at(tmp_path / "node"):
        assert held(node.socket) == 0
        node.start()
        node.workload(nbytes=2**20).ready(slots=2)
        assert held(node.socket) >= 2 * 2**20


def test_this_machine_s_memory_is_looked_at(sockets: SocketConfig) -> None:
    little, all_of_it = Budget.parse("4KiB"), Budget.parse("900TiB")
    nobody = PeerConfig(budget=all_of_it)
    assert check_memory(MemoryConfig(little), nobody, sockets).verdict is Verdict.OK
    assert check_memory(MemoryConfig(all_of_it), nobody, sockets).verdict is Verdict.FAIL
    # What others may put here counts as well, where they may.
    others = PeerConfig("127.0.0.1:9912", budget=all_of_it)
    assert check_memory(MemoryConfig(little), others, sockets).verdict is Verdict.FAIL


def test_few_open_files_never_fail() -> None:
    assert check_files().verdict in {Verdict.OK, Verdict.WARN}


@pytest.mark.parametrize(
    ("setting", "verdict"),
    [
        ("always within_size advise [never] deny force", Verdict.WARN),
        ("always within_size advise never [deny] force", Verdict.WARN),
        ("always within_size [advise] never deny force", Verdict.OK),
        ("[always] within_size advise never deny force", Verdict.OK),
        ("", Verdict.OK),
    ],
)
def test_a_kernel_that_gives_no_huge_pages_is_told_with_the_cure(
    tmp_path: Path, setting: str, verdict: Verdict
) -> None:
    file = tmp_path / "shmem_enabled"
    file.write_text(setting + "\n")

    finding = check_huge_pages(file)

    assert finding.verdict is verdict
    assert finding.cure == (f"echo advise > {file}" if verdict is Verdict.WARN else "")


def test_a_kernel_without_such_pages_needs_no_cure(tmp_path: Path) -> None:
    assert check_huge_pages(tmp_path / "none").verdict is Verdict.OK


def test_users_that_do_not_exist_are_named() -> None:
    finding = check_policy(PolicyConfig(allow_users=("root", "nobody-here-by-this-name")))

    assert finding.verdict is Verdict.WARN
    assert finding.detail == "no such user: nobody-here-by-this-name"
    assert check_policy(PolicyConfig()).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("config", "detail"),
    [
        (PolicyConfig(users=(UserPolicy("nobody-here"),)), "no such user: nobody-here"),
        (
            PolicyConfig(allow_users=("1002",), users=(UserPolicy("root"),)),
            "limits for who may not register: root",
        ),
        (
            PolicyConfig(max_priority=-5, users=(UserPolicy("root", max_priority=-4),)),
            "nobody may ask for more than -5, but root should",
        ),
    ],
)
def test_limits_that_do_not_count_are_told(config: PolicyConfig, detail: str) -> None:
    finding = check_policy(config)

    assert finding.verdict is Verdict.WARN
    assert finding.detail == detail


def test_a_uid_needs_no_name() -> None:
    config = PolicyConfig(allow_users=("4242",), users=(UserPolicy("4242"),))

    assert check_policy(config).verdict is Verdict.OK


def test_a_folder_to_spill_to_is_one_where_files_can_be_made(tmp_path: Path) -> None:
    assert check_spill(tmp_path).verdict is Verdict.OK
    assert list(tmp_path.iterdir()) == []

    for wrong in (tmp_path / "none", Path("/proc")):
        finding = check_spill(wrong)
        assert finding.verdict is Verdict.FAIL
        assert finding.detail.startswith(f"{wrong}: ")


def test_a_spill_folder_is_looked_at_where_one_is_wanted(tmp_path: Path) -> None:
    def names(config: Config) -> list[str]:
        return [one.name for one in checks(config, SystemClock())]

    config = load(None, {}, {})
    wanted = load(None, {"EVAC_MEMORY_SPILL": str(tmp_path)}, {})
    assert "spill" not in names(config)
    assert "spill" in names(wanted)
