"""A user whose own folder in a store on disk is a trap: links, lies, and the way up."""

import json
import mmap
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from evac.commit import State, survey
from evac.segment import PAGE, Header, SlotState, aligned
from evac.store import open_store
from evac.wire import Acquire, Granted, Reserve, Save, Staged, encode
from tests.agent.daemon.nodes import until
from tests.agent.security.attack import NOBODY, Line, as_long_as, as_user
from tests.agent.security.conftest import Scene

BODY = b"hostile" * 1000


def saved(scene: Scene, job: str, uid: int) -> bool:
    """Its own user has it saved; whether it was."""
    ordered = as_user(uid, lambda: Line(scene.socket).ask(Save(job, 30.0)).type)
    assert ordered == "ordered"

    def settled() -> dict[str, Any] | None:
        found: list[dict[str, Any]] = scene.node.status()["leaving"]
        return next(
            (one for one in found if one["unit"].endswith(f"/{job}") and one["settled"]), None
        )

    return bool(until("it has settled", settled)["state"] == "kept")


def bystander_is_saved(scene: Scene) -> None:
    """Whatever else lies there."""
    scene.goes_on()
    assert saved(scene, "bystander", 0)
    step = f"root/bystander/step-{scene.step}.1/"
    assert any(path.startswith(step) for path in scene.node.files())
    parts = [Path(path).parts for path in scene.node.files()]
    mine = {path[2].split("-")[0] for path in parts if path[:2] == ("root", "bystander")}
    # Nothing came there from elsewhere.
    assert mine == {"step", "evac"}


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


def trap(scene: Scene, job: str, lay: Callable[[Path], object]) -> AbstractContextManager[None]:
    """Nobody comes on board, lays a trap in the folder that it got, and stages."""

    def attack() -> list[Line]:
        line = Line(scene.socket).aboard(job)
        lay(scene.node.store / "nobody" / job)
        assert stage(line) == "accepted"
        return [line]

    return as_long_as(NOBODY, attack)


@pytest.fixture
def outside(scene: Scene) -> Iterator[Path]:
    """A folder that a link may lead to, and that stays as it was."""
    folder = scene.node.store.parent / "outside"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    assert list(folder.iterdir()) == []
    folder.rmdir()


def away(folder: Path, to: Path) -> None:
    folder.rmdir()
    folder.symlink_to(to)


@pytest.mark.parametrize("target", ["root/bystander", "../outside"])
def test_a_job_folder_that_became_a_link_is_not_followed(
    scene: Scene, outside: Path, target: str
) -> None:
    job = f"folder{len(target)}"
    with trap(scene, job, lambda folder: away(folder, scene.node.store / target)):
        assert not saved(scene, job, NOBODY)
        bystander_is_saved(scene)


def test_a_generation_folder_that_is_a_link_is_not_followed(scene: Scene, outside: Path) -> None:
    with trap(scene, "generation", lambda folder: (folder / "step-1.1").symlink_to(outside)):
        assert not saved(scene, "generation", NOBODY)
        bystander_is_saved(scene)


@pytest.mark.parametrize("name", ["a.bin", "__0.manifest.json"])
def test_a_file_that_is_a_link_is_replaced_and_not_written_through(scene: Scene, name: str) -> None:
    secret, job = scene.node.store.parent / "secret", f"file{len(name)}"
    secret.write_text("untouched")

    def lay(folder: Path) -> None:
        (folder / "step-1.1").mkdir()
        (folder / "step-1.1" / name).symlink_to(secret)

    with trap(scene, job, lay):
        saved(scene, job, NOBODY)
        bystander_is_saved(scene)
    assert secret.read_text() == "untouched"
    assert secret.stat().st_uid == 0


def test_what_the_daemon_writes_there_is_its_users_and_nobody_elses(scene: Scene) -> None:
    with trap(scene, "honest", lambda _: None):
        assert saved(scene, "honest", NOBODY)
        bystander_is_saved(scene)
    store = scene.node.store
    owners = {
        (path.relative_to(store).parts[0], path.lstat().st_uid)
        for path in store.rglob("*") if path.is_file() and "evac-probe" not in path.parts
    }  # fmt: skip
    assert owners == {("root", 0), ("nobody", NOBODY)}

    def attack() -> list[bool]:
        others = [store, store / "root", store / "root" / "bystander"]
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


async def test_a_manifest_that_lies_makes_nothing_whole_and_stops_no_start(scene: Scene) -> None:
    node = scene.node
    with trap(scene, "trap", lambda _: None):
        assert saved(scene, "trap", NOBODY)
        bystander_is_saved(scene)
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
    node.kill()
    before_it = len(node.log.read_text())
    node.start()
    until("it has looked", lambda: "lane.measured" in node.log.read_text()[before_it:])
    assert "Traceback" not in node.log.read_text()
    scene.comes_back()


DESCRIPTORS: dict[str, bytes] = {
    "beyond the body": b'{"items": [{"name": "w", "offset": 0, "nbytes": 99999999}]}',
    "before the body": b'{"items": [{"name": "w", "offset": -4096, "nbytes": 4}]}',
    "not JSON": b"\x00" * 64,
    "not a list": b'{"items": 5}',
    "deep": b'{"items": [{"name": "w", "offset": 0, "nbytes": 4, "x": ' + b"[" * 3000 + b"]" * 3000 + b"}]}",
    "NaN": b'{"items": [{"name": "w", "offset": 0, "nbytes": 4, "x": NaN}]}',
}  # fmt: skip


def test_a_descriptor_that_lies_is_refused(scene: Scene) -> None:
    def attack() -> list[str]:
        answers = []
        for number, lie in enumerate(DESCRIPTORS.values()):
            line = Line(scene.socket).aboard(f"liar{number}")
            answers.append(stage(line, descriptor=lie))
        return answers

    answers = as_user(NOBODY, attack)
    assert "accepted" not in answers
    assert all("descriptor" in one for one in answers), answers
    bystander_is_saved(scene)
