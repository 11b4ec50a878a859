"""A user whose own folder in a store on disk is a trap: links, lies, and the way up."""

import json
import mmap
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evac.admin import request
from evac.commit import State, survey
from evac.segment import PAGE, Header, SlotState, aligned
from evac.store import open_store
from evac.wire import Acquire, Granted, Reserve, Save, Staged, encode
from tests.agent.daemon.nodes import Node, node_at, until
from tests.agent.security.attack import NOBODY, Line, as_long_as, as_user

BODY = b"hostile" * 1000
NBYTES = 64 * 1024


@pytest.fixture
def node() -> Iterator[Node]:
    """Root's daemon, with a bystander's job; its store is whole at the end."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    for node in node_at(folder / "node"):
        node.store.mkdir(mode=0o755)
        node.start()
        yield node
    shutil.rmtree(folder)


def bystander_is_saved(node: Node) -> None:
    """A drain saves it, whatever else lies there."""
    node.drain()
    assert node.settled()["root/bystander"]["kept"]
    assert any(path.startswith("root/bystander/step-5.1/") for path in node.files())


def stage(line: Line, *, descriptor: bytes = b"", metadata: bytes = b"") -> str:
    """Reserve and stage step 1; the answer's type or reason."""
    nbytes = PAGE * 4 + aligned(len(BODY)) + aligned(len(descriptor)) + aligned(len(metadata))
    line.sock.send(encode(Reserve(nbytes=nbytes, body="a.bin", slots=1, incarnation=1), id=9999))
    _, [fd], _, _ = socket.recv_fds(line.sock, 1 << 16, 1)
    assert isinstance(line.ask(Acquire()), Granted)
    tail = PAGE + aligned(len(BODY))
    after = tail + aligned(len(descriptor))
    with mmap.mmap(fd, nbytes) as slot:
        slot[PAGE : PAGE + len(BODY)] = BODY
        slot[tail : tail + len(descriptor)] = descriptor
        slot[after : after + len(metadata)] = metadata
        header = Header(
            SlotState.COMPLETE, 1, 1, len(BODY), tail, len(descriptor), after, len(metadata)
        ).pack()
        slot[: len(header)] = header
    answer = line.ask(Staged(slot=0, step=1))
    return getattr(answer, "reason", answer.type)


def trap(node: Node, lay: Callable[[Path], object]) -> Any:
    """Nobody comes on board, lays a trap in the folder that it got, and stages."""

    def attack() -> list[Any]:
        line = Line(str(node.socket)).aboard("trap")
        lay(node.store / "nobody" / "trap")
        assert stage(line) == "accepted"
        return [line]

    return as_long_as(NOBODY, attack)


def outcome(node: Node) -> dict[str, Any]:
    """What became of the trap's own job."""
    request(node.socket, Save("bystander", 30.0), timeout=5.0)
    node.drain()
    return node.settled()["nobody/trap"]


def away(folder: Path, to: Path) -> None:
    folder.rmdir()
    folder.symlink_to(to)


@pytest.mark.parametrize("target", ["root/bystander", "../outside"])
def test_a_job_folder_that_became_a_link_is_not_followed(node: Node, target: str) -> None:
    outside = node.store.parent / "outside"
    outside.mkdir()
    node.staged(5, "bystander", nbytes=NBYTES)
    with trap(node, lambda folder: away(folder, node.store / target)):
        lost = outcome(node)
        assert not lost["kept"]
        bystander_is_saved(node)
    assert list(outside.iterdir()) == []
    assert {path.parts[2] for path in map(Path, node.files()) if path.parts[:2] == ("root", "bystander")} == {
        "step-5.1", "evac-job.json"
    }  # fmt: skip


def test_a_generation_folder_that_is_a_link_is_not_followed(node: Node) -> None:
    outside = node.store.parent / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    node.staged(5, "bystander", nbytes=NBYTES)
    with trap(node, lambda folder: (folder / "step-1.1").symlink_to(outside)):
        assert not outcome(node)["kept"]
        bystander_is_saved(node)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["a.bin", "__0.manifest.json"])
def test_a_file_that_is_a_link_is_replaced_and_not_written_through(node: Node, name: str) -> None:
    secret = node.store.parent / "secret"
    secret.write_text("untouched")
    node.staged(5, "bystander", nbytes=NBYTES)

    def lay(folder: Path) -> None:
        (folder / "step-1.1").mkdir()
        (folder / "step-1.1" / name).symlink_to(secret)

    with trap(node, lay):
        outcome(node)
        bystander_is_saved(node)
    assert secret.read_text() == "untouched"
    assert secret.stat().st_uid == 0


def test_what_the_daemon_writes_there_is_its_users_and_nobody_elses(node: Node) -> None:
    node.staged(5, "bystander", nbytes=NBYTES)
    with trap(node, lambda _: None):
        assert outcome(node)["kept"]
        bystander_is_saved(node)
    owners = {
        path.relative_to(node.store).parts[0]: path.stat().st_uid
        for path in node.store.rglob("*") if path.is_file() and "evac-probe" not in path.parts
    }  # fmt: skip
    assert owners == {"root": 0, "nobody": NOBODY}

    def attack() -> list[bool]:
        others = [node.store, node.store / "root", node.store / "root" / "bystander"]
        return [os.access(path, os.W_OK) for path in others]

    assert as_user(NOBODY, attack) == [False] * 3


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "longer than its body": lambda m: m["files"][0].update(nbytes=m["files"][0]["nbytes"] + 4096),
    "a body that climbs": lambda m: m["files"][0].update(
        name="../../../root/bystander/step-5.1/part0.bin"
    ),
    "a world of millions": lambda m: m.update(world=10_000_000),
    "another generation": lambda m: m.update(step=99),
    "no numbers": lambda m: m["files"][0].update(nbytes="many"),
    "nothing": lambda m: m.clear(),
}


async def test_a_manifest_that_lies_makes_nothing_whole_and_stops_no_start(node: Node) -> None:
    node.staged(5, "bystander", nbytes=NBYTES)
    with trap(node, lambda _: None):
        assert outcome(node)["kept"]
        bystander_is_saved(node)
    mine = node.store / "nobody"
    manifest = Path("step-1.1", "__0.manifest.json")
    before = json.loads((mine / "trap" / manifest).read_text())

    def lie() -> None:
        for number, bend in enumerate(LIES.values()):
            shutil.copytree(mine / "trap", mine / f"lie{number}")
            document = {**json.loads(json.dumps(before)), "job": f"lie{number}"}
            bend(document)
            (mine / f"lie{number}" / manifest).write_text(json.dumps(document))

    mine.chmod(0o777)
    as_user(NOBODY, lie)

    for number, how in enumerate(LIES):
        found = await survey(open_store(f"file://{node.store}"), f"nobody/lie{number}")
        assert [one for one in found if one.state is State.COMPLETE] == [], how
    # A daemon that starts there tidies up after its predecessor, and reads what lies about.
    node.cancel()
    node.kill()
    before_it = len(node.log.read_text())
    node.start()
    until("it has looked", lambda: "lane.measured" in node.log.read_text()[before_it:])
    assert "Traceback" not in node.log.read_text()


DESCRIPTORS: dict[str, bytes] = {
    "beyond the body": b'{"items": [{"name": "w", "offset": 0, "nbytes": 99999999}]}',
    "before the body": b'{"items": [{"name": "w", "offset": -4096, "nbytes": 4}]}',
    "not JSON": b"\x00" * 64,
    "not a list": b'{"items": 5}',
    "deep": b'{"items": [{"name": "w", "offset": 0, "nbytes": 4, "x": ' + b"[" * 3000 + b"]" * 3000 + b"}]}",
    "NaN": b'{"items": [{"name": "w", "offset": 0, "nbytes": 4, "x": NaN}]}',
}  # fmt: skip


def test_a_descriptor_that_lies_is_refused(node: Node) -> None:
    node.staged(5, "bystander", nbytes=NBYTES)

    def attack() -> list[str]:
        answers = []
        for number, lie in enumerate(DESCRIPTORS.values()):
            line = Line(str(node.socket)).aboard(f"liar{number}")
            answers.append(stage(line, descriptor=lie))
        return answers

    answers = as_user(NOBODY, attack)
    assert "accepted" not in answers
    assert all("descriptor" in one for one in answers), answers
    bystander_is_saved(node)
