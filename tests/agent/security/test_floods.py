"""Too much of everything from one user: refused, logged once, counted, and a bystander goes on."""

import os
import re
import resource
import shutil
import socket
import tempfile
import urllib.request
from array import array
from contextlib import suppress
from pathlib import Path

import pytest

from evac.wire import Accepted, Acquire, Leave, Refuse, Reserve, encode
from tests.agent.daemon.nodes import Node, until
from tests.agent.security.attack import NOBODY, Line, as_long_as, as_user
from tests.agent.security.conftest import Scene

MIB = 1 << 20


def fds(scene: Scene) -> int:
    assert scene.node.process
    return len(os.listdir(f"/proc/{scene.node.process.pid}/fd"))


def lines(scene: Scene, *words: str) -> list[str]:
    return [
        line for line in scene.node.log.read_text().splitlines() if all(w in line for w in words)
    ]


def denied(scene: Scene, what: str) -> int:
    """What /metrics counts."""
    url = f"{scene.node.status()['http']['url']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        found = re.search(
            rf'^evac_clients_denied_total{{what="{what}"}} (\S+)$',
            page.read().decode(),
            re.MULTILINE,
        )
    return int(float(found[1])) if found else 0


def used(scene: Scene, uid: int) -> int:
    return sum(
        slot["nbytes"]
        for one in scene.node.status()["workloads"]
        if one["uid"] == uid
        for slot in one["slots"]
    )


def test_a_flood_of_connections_pushes_out_its_own(scene: Scene) -> None:
    before, counted = fds(scene), denied(scene, "dropped")

    def attack() -> int:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        held = [Line(scene.socket) for _ in range(600)]
        return len(held)

    assert as_user(NOBODY, attack) == 600
    until("the flood is over", lambda: fds(scene) <= before + 2)
    assert denied(scene, "dropped") - counted >= 500
    assert len(lines(scene, "workload.dropped", "65534")) == 1


def test_while_it_stands_no_more_than_its_share_is_open(scene: Scene) -> None:
    before = fds(scene)
    with as_long_as(NOBODY, lambda: [Line(scene.socket) for _ in range(200)]):
        # What it was pushed out of is closed by threads, soon.
        until("its share is left", lambda: before < fds(scene) <= before + 64 + 2)
    until("the flood is over", lambda: fds(scene) <= before + 2)


@pytest.mark.parametrize("count", [1, 253])
def test_a_flood_of_fds_leaves_none_behind(scene: Scene, count: int) -> None:
    before = fds(scene)

    def attack() -> int:
        told = 0
        for _ in range(50):
            line = Line(scene.socket)
            rights = array("i", [0] * count)
            line.sock.sendmsg(
                [encode(Acquire(), id=9)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )
            answer = line.receive()
            told += answer is not None and isinstance(answer.message, Refuse)
            line.close()
        return told

    assert as_user(NOBODY, attack) == 50
    until("all are closed", lambda: fds(scene) <= before + 2)


def test_memory_ends_at_the_users_share(scene: Scene) -> None:
    def attack() -> list[str]:
        held, reasons = [], []
        for number in range(8):
            line = Line(scene.socket).aboard(f"greedy{number}")
            line.sock.send(encode(Reserve(nbytes=16 * MIB, body="a.bin", slots=16), id=9))
            while (packet := line.receive()) is not None:
                if isinstance(packet.message, Refuse):
                    reasons.append(packet.message.reason)
                    break
                if getattr(packet.message, "last", False):
                    break
            held.append(line)
        reasons.append(str(max(used(scene, NOBODY), 0)))
        return reasons

    *reasons, most = as_user(NOBODY, attack)
    assert int(most) <= 64 * MIB
    assert len(reasons) >= 4
    assert all("your user's share of this node is 64 MiB" in one for one in reasons), reasons
    assert len(lines(scene, "workload.denied", '"reserve"')) == 1
    assert denied(scene, "reserve") >= 4
    until("its memory is back", lambda: used(scene, NOBODY) == 0)


def test_who_is_refused_over_and_over_is_logged_once(scene: Scene) -> None:
    counted = denied(scene, "register")

    def attack() -> int:
        line = Line(scene.socket)
        answers = [line.register("mine", priority=10_000) for _ in range(300)]
        return sum(isinstance(one, Refuse) for one in answers)

    assert as_user(NOBODY, attack) == 300
    assert denied(scene, "register") - counted == 300
    assert len(lines(scene, "workload.denied", '"register"')) == 1


def test_who_comes_and_leaves_for_ever_fills_no_log(scene: Scene) -> None:
    before = len(scene.node.log.read_text().splitlines())

    def attack() -> int:
        line = Line(scene.socket)
        for _ in range(1000):
            line.aboard("comes")
            assert isinstance(line.ask(Leave()), Accepted)
        return 1000

    assert as_user(NOBODY, attack) == 1000
    # Some hundreds at once, as of a job of many ranks, and then one a second of each kind.
    assert len(scene.node.log.read_text().splitlines()) - before < 900


def test_who_comes_and_dies_for_ever_is_forgotten(scene: Scene) -> None:
    def attack() -> int:
        came = 0
        for number in range(80):
            child = os.fork()
            if child == 0:
                Line(scene.socket).aboard(f"mayfly{number}")
                os._exit(0)
            came += os.waitpid(child, 0)[1] == 0
        return came

    assert as_user(NOBODY, attack) == 80
    node = scene.node
    until(
        "all are dead", lambda: not any(w["alive"] and w["uid"] for w in node.status()["workloads"])
    )
    assert sum(one["uid"] == NOBODY for one in node.status()["workloads"]) <= 64


def test_questions_without_end_go_unanswered_and_cost_only_the_asker(scene: Scene) -> None:
    before = fds(scene)

    def attack() -> int:
        line, sent = Line(scene.socket), 0
        with suppress(OSError):
            line.sock.settimeout(1.0)
            for number in range(2000):
                line.sock.send(b'{"type":"status","id":%d}' % (number + 10))
                sent += 1
        return sent

    assert as_user(NOBODY, attack) > 0
    scene.goes_on()
    until("what waited for it is closed", lambda: fds(scene) <= before + 2)


def test_the_daemon_is_none_the_worse(scene: Scene) -> None:
    assert "Traceback" not in scene.node.log.read_text()
    assert Path(f"/proc/{scene.node.process.pid if scene.node.process else 0}").exists()


class Poor(Node):
    """One whose daemon may open few files."""

    def command(self, *flags: str) -> list[str]:
        return ["prlimit", "--nofile=96:96", *super().command(*flags)]


def test_a_daemon_out_of_fds_serves_who_is_on_board_and_says_so_once() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    node = Poor(folder / "node")
    try:
        bystander = node.start().staged(1, "bystander", nbytes=64 * 1024)
        path = str(node.socket)

        def flood() -> list[socket.socket]:
            held = []
            for _ in range(60):
                held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                held[-1].setblocking(False)
                held[-1].connect(path)
            return held

        with as_long_as(NOBODY, flood), as_long_as(NOBODY - 1, flood):
            until("it runs out", lambda: "sockets.exhausted" in node.log.read_text())
            for step in range(2, 30):
                assert bystander.do("stage", step=step) == {}
        node.knows("bystander", 29)
        assert node.log.read_text().count("sockets.exhausted") == 1
        assert "Traceback" not in node.log.read_text()
    finally:
        node.close()
        shutil.rmtree(folder)
