"""Whose pod connects, with real processes in real cgroups, and what its namespace may then do."""

import asyncio
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evac.wire import Accepted, Drain, Register
from evacd.workloads.cgroup import Pod, Stray
from evacd.workloads.happenings import Denied
from evacd.workloads.peer import barred, peer_of
from evacd.workloads.pods import whereabouts
from evacd.workloads.policy import Admission, Refusal, admit
from evacd.workloads.settings import UserLimits
from tests.agent.workloads.peers import Peer, serving, settings

TEAM = Pod("team-a", "train-0", "uid")
REGISTER = Register(job="train", rank=0, world=1, priority=5)
NODE = replace(
    settings(Path("/")),
    pods=Path("/var/log/pods"),
    namespaces={"team-a": UserLimits(max_priority=10, prefix="research"), "open": UserLimits()},
)


def asked(pod: Pod | Stray | None, *, priority: int = 5, **changed: object) -> Admission | Refusal:
    node = replace(NODE, **changed)  # type: ignore[arg-type]  # a table of fields
    register = replace(REGISTER, priority=priority)
    return admit(register, user="root", uid=0, aboard=0, settings=node, pod=pod)


def reason(answer: Admission | Refusal) -> str:
    assert isinstance(answer, Refusal)
    return answer.reason


def test_a_pod_s_jobs_lie_under_its_namespace() -> None:
    answer = asked(Pod("vision", "train-0", "uid"))
    assert isinstance(answer, Admission)
    assert answer.unit == "vision/train"


def test_a_namespace_may_have_a_prefix_of_its_own() -> None:
    answer = asked(TEAM)
    assert isinstance(answer, Admission)
    assert answer.unit == "research/train"


def test_a_prefix_that_another_namespace_was_given_is_nobody_else_s() -> None:
    said = reason(asked(Pod("research", "train-0", "uid")))
    assert said == "prefix research is namespace team-a's: see policy.namespaces"


def test_nor_is_what_lies_above_it() -> None:
    given = {"team-a": UserLimits(prefix="teams/research")}
    said = reason(asked(Pod("teams", "train-0", "uid"), namespaces=given))
    assert said == "prefix teams is namespace team-a's: see policy.namespaces"


def test_who_is_in_no_pod_lies_under_its_user() -> None:
    answer = asked(None)
    assert isinstance(answer, Admission)
    assert answer.unit == "root/train"


def test_a_namespace_has_its_highest_priority() -> None:
    said = reason(asked(TEAM, priority=11))
    assert said == "priority 11 is above 10, the highest that namespace team-a may ask for"


def test_root_of_a_container_has_no_more_than_its_namespace() -> None:
    users = {"root": UserLimits(max_priority=1000, prefix="admin")}
    assert isinstance(asked(TEAM, priority=11, users=users), Refusal)
    answer = asked(TEAM, users=users)
    assert isinstance(answer, Admission)
    assert answer.unit == "research/train"


def test_namespaces_may_be_named_that_register() -> None:
    assert isinstance(asked(TEAM, allow_namespaces=("team-a",)), Admission)
    assert "namespace team-a may not register" in reason(asked(TEAM, allow_namespaces=("b",)))


def test_where_namespaces_are_named_who_is_in_no_pod_has_to_be_named_as_a_user() -> None:
    assert "in no pod of allow_namespaces" in reason(asked(None, allow_namespaces=("b",)))
    named = ("b",)
    said = reason(asked(None, allow_namespaces=named, allow_users=("ann",)))
    assert "user root may not register" in said
    answer = asked(None, allow_namespaces=named, allow_users=("root",))
    assert isinstance(answer, Admission)


def test_where_only_users_are_named_a_pod_does_not_get_around_it() -> None:
    assert "user root may not register" in reason(asked(TEAM, allow_users=("ann",)))


def test_a_pod_that_nobody_knows_is_refused_and_told_why() -> None:
    said = reason(asked(Stray("some-uid")))
    assert "some-uid" in said
    assert "/var/log/pods" in said


class Cgroup:
    """A cgroup with a pod's name, and processes in it."""

    def __init__(self, root: Path, uid: str) -> None:
        # Below one of its own: others on this machine may have a kubelet's.
        self.top = root / f"evac-test-{uid}"
        self.path = self.top / "kubepods" / "burstable" / f"pod{uid}"
        self.path.mkdir(parents=True)
        self.processes: list[subprocess.Popen[str]] = []

    def run(self, code: str, *arguments: str) -> "subprocess.Popen[str]":
        """A Python in it, from its first line on."""
        enter = f"import os; open({str(self.path / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
        process = subprocess.Popen(
            [sys.executable, "-c", f"{enter}\n{code}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for folder in (self.path, *self.path.parents[:3]):
            folder.rmdir()


@pytest.fixture
def uid() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def cgroup(uid: str) -> Iterator[Cgroup]:
    for root in (
        Path("/sys/fs/cgroup"),
        Path("/sys/fs/cgroup/pids"),
        Path("/sys/fs/cgroup/unified"),
    ):
        if (root / "cgroup.procs").exists() and os.access(root, os.W_OK):
            try:
                made = Cgroup(root, uid)
            except OSError:
                continue
            break
    else:
        pytest.skip("needs root, and a cgroup to make another in")
    yield made
    made.close()


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    folders = tmp_path / "pods"
    folders.mkdir()
    (folders / "kube-system_dns-1_another-uid").mkdir()
    return folders


CONNECT = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""

DRAIN = """
import sys
from pathlib import Path
from evac.admin import request
from evac.errors import EvacError
from evac.wire import Drain
try:
    print(request(Path(sys.argv[1]), Drain(seconds=30.0, reason=""), timeout=10))
except EvacError as error:
    print(error)
"""


def test_the_process_that_connects_is_found_in_its_pod(
    cgroup: Cgroup, uid: str, folders: Path, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        process = cgroup.run(CONNECT, str(tmp_path / "sock"))
        peer, _ = listener.accept()
        with peer:
            assert peer_of(peer).pod is None
            assert peer_of(peer, pods=folders).pod == Stray(uid)
            (folders / f"team-a_train-0_{uid}").mkdir()
            assert peer_of(peer, pods=folders).pod == Pod("team-a", "train-0", uid)
            assert peer_of(peer, pods=tmp_path / "none").pod is None
            process.kill()
            process.wait()
            assert peer_of(peer, pods=folders).pod is None


def test_the_root_of_a_workload_s_pod_gives_no_orders(
    cgroup: Cgroup, uid: str, folders: Path, tmp_path: Path
) -> None:
    """Its uid is 0 as an operator's is, and it may have come by the socket's file."""
    (folders / f"team-a_train-0_{uid}").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        process = cgroup.run(CONNECT, str(tmp_path / "sock"))
        line, _ = listener.accept()
        with line:
            peer = peer_of(line, pods=folders)
            assert barred(line, peer, folders) == "a workload's pod gives no orders to its node"
            # On a node without pods the file's mode decides.
            assert barred(line, peer_of(line), None) == ""
            process.kill()
            process.wait()
            assert "cannot be seen" in barred(line, peer_of(line, pods=folders), folders)


async def test_an_order_from_a_workload_s_pod_is_refused_and_counted(
    cgroup: Cgroup, uid: str, folders: Path, tmp_path: Path
) -> None:
    (folders / f"team-a_train-0_{uid}").mkdir()
    async with serving(settings(tmp_path, pods=folders)) as node:
        script = await asyncio.to_thread(
            lambda: cgroup.run(DRAIN, str(node.settings.admin_path)).communicate()[0]
        )
        assert "a workload's pod gives no orders" in script
        assert node.administered == []
        assert [each.what for each in node.heard(Denied) if isinstance(each, Denied)] == ["drain"]

        operator = Peer(node.settings.admin_path)
        with operator.sock:
            await operator.hello()
            assert isinstance(await operator.ask(Drain(seconds=30.0, reason="")), Accepted)


def test_this_process_is_in_no_pod(folders: Path) -> None:
    assert whereabouts(os.getpid(), folders) is None


def test_who_is_not_there_is_in_no_pod(folders: Path) -> None:
    assert whereabouts(2**22 + 1, folders) is None
