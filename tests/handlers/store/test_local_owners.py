"""Whose files a local store's are, and what others leave in their way: links, FIFOs, folders."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from evac.errors import StoreRejected
from evac.store.local import LocalStore
from tests.handlers.store.conftest import OWNER, needs_root
from tests.handlers.store.contract import MIB


@needs_root
async def test_new_files_and_folders_are_the_owners_and_old_ones_are_left_alone(
    disk: Path, strict_umask: None
) -> None:
    (disk / "store").mkdir()
    (disk / "store").chmod(0o711)
    store = LocalStore(str(disk / "store"), owner=OWNER)

    await store.put("user/job/step-1.1/__0_0.distcp", memoryview(bytes(2 * MIB)))
    await store.create("user/job/evac-job.json", b"{}")

    for path in (disk / "store").rglob("*"):
        there = path.stat()
        assert (there.st_uid, there.st_gid) == (OWNER.uid, OWNER.gid)
        assert stat.S_IMODE(there.st_mode) == (0o750 if path.is_dir() else 0o640)
    assert (disk / "store").stat().st_uid == 0
    assert stat.S_IMODE((disk / "store").stat().st_mode) == 0o711


async def test_a_root_that_we_make_lets_every_owner_pass(disk: Path, strict_umask: None) -> None:
    await LocalStore(str(disk / "a/b"), owner=OWNER).put("user/x", memoryview(b"x"))

    assert stat.S_IMODE((disk / "a").stat().st_mode) == 0o755
    assert stat.S_IMODE((disk / "a/b").stat().st_mode) == 0o755


@pytest.mark.parametrize("planted", ["folder", "parent", "file"])
async def test_a_link_beneath_the_root_is_never_followed(disk: Path, planted: str) -> None:
    outside, root = disk / "outside", disk / "root"
    (outside / "job").mkdir(parents=True)
    (outside / "job" / "body").write_bytes(b"secret")
    root.mkdir()
    if planted == "parent":
        (root / "user").symlink_to(outside)
    else:
        (root / "user").mkdir()
        if planted == "folder":
            (root / "user" / "job").symlink_to(outside / "job")
        else:
            (root / "user" / "job").mkdir()
            (root / "user" / "job" / "body").symlink_to(outside / "job" / "body")
    store = LocalStore(str(root))

    with pytest.raises(StoreRejected):
        await store.get("user/job/body")
    assert await store.list("") == []
    assert await store.list("user/job") == []
    if planted == "file":
        # Replacing the link itself is fine: what it points to stays.
        await store.put("user/job/body", memoryview(b"ours"))
    else:
        with pytest.raises(StoreRejected):
            await store.put("user/job/body", memoryview(b"ours"))
        with pytest.raises(StoreRejected):
            await store.delete("user/job/body")

    assert (outside / "job" / "body").read_bytes() == b"secret"
    assert list((outside / "job").iterdir()) == [outside / "job" / "body"]


async def test_a_fifo_in_place_of_an_object_does_not_hang_a_reader(disk: Path) -> None:
    os.mkfifo(disk / "a")
    store = LocalStore(str(disk))

    async with asyncio.timeout(30):
        with pytest.raises(StoreRejected, match="not a regular file"):
            await store.get("a")
        assert await store.list("") == []


@needs_root
async def test_a_prepared_place_is_the_owners_alone(disk: Path, strict_umask: None) -> None:
    root = disk / "root"

    await LocalStore(str(root), owner=OWNER).prepare("user/job")

    for path in (root / "user", root / "user" / "job"):
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (12345, 23456, 0o750)
    assert (root.stat().st_uid, root.stat().st_mode & 0o777) == (0, 0o755)


@needs_root
@pytest.mark.parametrize("where", ["user", "user/job"])
async def test_a_place_that_is_anothers_is_left_to_them_and_told(disk: Path, where: str) -> None:
    taken = disk / where
    taken.mkdir(parents=True)
    os.chown(taken, 777, 777)

    with pytest.raises(StoreRejected, match=f"{where} belongs to uid 777, not to 12345"):
        await LocalStore(str(disk), owner=OWNER).prepare("user/job")

    assert taken.stat().st_uid == 777


@pytest.mark.parametrize("link", ["user", "user/job"])
async def test_no_place_is_prepared_behind_a_link(disk: Path, link: str) -> None:
    outside = disk / "outside"
    outside.mkdir()
    (disk / "root" / link).parent.mkdir(parents=True)
    (disk / "root" / link).symlink_to(outside)

    with pytest.raises(StoreRejected):
        await LocalStore(str(disk / "root")).prepare("user/job")

    assert list(outside.iterdir()) == []
