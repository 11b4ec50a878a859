"""`LocalStore` on real file systems, small, full, read-only and hostile ones among them."""

import asyncio
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evac.errors import ConfigError, StoreRejected
from evac.store import Store, open_store
from evac.store.local import LocalStore
from evac.store.threads import LIMIT
from tests.handlers.store.conftest import OWNER, ROOT, needs_root
from tests.handlers.store.contract import MIB, StoreContract


def temporary_files(root: Path) -> list[str]:
    return [p.name for p in root.rglob("*") if ".evac-tmp-" in p.name]


class TestLocalStoreOnDisk(StoreContract):
    @pytest.fixture
    def store(self, disk: Path) -> Store:
        # Not there yet: the first put makes it.
        return open_store(f"file://{disk}/some/where", owner=OWNER if ROOT else None)


class TestLocalStoreInMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        if not os.path.ismount("/dev/shm"):
            pytest.skip("/dev/shm is no tmpfs here")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            yield open_store(f"file://{folder}")


def test_a_url_without_an_absolute_path_is_a_config_error() -> None:
    for url in ("file://relative/path", "file:relative", "ftp://host/x", "nonsense"):
        with pytest.raises(ConfigError):
            open_store(url)


async def test_shared_memory_goes_to_disk_unchanged_from_any_offset(disk: Path) -> None:
    nbytes = 40 * MIB + 777
    fd = os.memfd_create("body")
    os.ftruncate(fd, nbytes + 2 * 4096)
    with mmap.mmap(fd, 0) as memory, memoryview(memory) as view:
        os.pwrite(fd, os.urandom(nbytes), 4096)
        store = LocalStore(str(disk))
        # A slot's body is aligned to its page; the other is what O_DIRECT may refuse.
        for start in (4096, 4097):
            with view[start : start + nbytes] as body:
                await store.put("a/b.bin", body)
                with (
                    (disk / "a/b.bin").open("rb") as file,
                    mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as there,
                    memoryview(there) as written,
                ):
                    assert written == body
    os.close(fd)


async def test_read_only_memory_can_be_put(disk: Path) -> None:
    fd = os.memfd_create("body")
    os.pwrite(fd, b"x" * (2 * MIB), 0)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        await LocalStore(str(disk)).put("a", view)
    os.close(fd)

    assert (disk / "a").read_bytes() == b"x" * (2 * MIB)


async def test_memory_that_its_owner_truncated_is_an_error_and_no_crash(disk: Path) -> None:
    fd = os.memfd_create("body")
    os.ftruncate(fd, 4 * MIB)
    with mmap.mmap(fd, 0) as memory, memoryview(memory) as view:
        os.ftruncate(fd, 4096)
        with pytest.raises(StoreRejected):
            await LocalStore(str(disk)).put("a", view)
    os.close(fd)

    assert os.listdir(disk) == []


@needs_root
async def test_a_full_disk_is_said_with_numbers_and_leaves_no_file(mount: Path) -> None:
    store = LocalStore(str(mount))
    await store.put("small", memoryview(bytes(MIB)))

    with pytest.raises(
        StoreRejected, match=r"No space left on device: \d+ bytes to write, \d+ free"
    ):
        await store.put("job/big", memoryview(bytearray(64 * MIB)))

    assert temporary_files(mount) == []
    assert [e.key for e in await store.list("")] == ["small"]
    await store.put("job/other", memoryview(bytes(MIB)))


@needs_root
async def test_a_read_only_store_is_rejected_and_still_readable(mount: Path) -> None:
    store = LocalStore(str(mount))
    await store.put("a/b", memoryview(b"x"))
    await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,ro", str(mount)], check=True)

    for doing in (
        store.put("a/c", memoryview(b"y")),
        store.put("d/e", memoryview(b"y")),
        store.delete("a/b"),
    ):
        with pytest.raises(StoreRejected, match="Read-only file system"):
            await doing
    with pytest.raises(StoreRejected, match="Read-only file system"):
        await store.create("a/c", b"y")
    assert await store.get("a/b") == b"x"


async def test_get_refuses_what_is_too_big_to_hold(disk: Path) -> None:
    with (disk / "a").open("wb") as file:
        file.truncate(257 * MIB)

    with pytest.raises(StoreRejected, match="at most"):
        await LocalStore(str(disk)).get("a")


WRITER = """
import asyncio, os, sys
from evac.store import open_store
data = memoryview(bytearray(64 * 1024 * 1024))
def progress(n):
    os.write(1, b"wrote\\n")  # at once: several threads come by here
    sys.stdin.read()  # holds the writer in the middle of its put
asyncio.run(open_store(sys.argv[1]).put("job/body", data, progress=progress))
"""


@contextmanager
def writer_in_mid_put(root: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, f"file://{root}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "wrote\n"
            yield writer
        finally:
            writer.kill()


async def test_a_killed_writer_leaves_no_key_and_what_it_left_is_cleaned(disk: Path) -> None:
    store = LocalStore(str(disk))
    with writer_in_mid_put(disk) as writer:
        assert temporary_files(disk)
        # It lives: nothing may be taken from under it.
        assert await store.clean(older_than=-3600) == 0
        writer.send_signal(signal.SIGKILL)

    assert await store.list("") == []
    assert await store.clean(older_than=3600) == 0
    assert await store.clean(older_than=-3600) == 1
    assert temporary_files(disk) == []


async def test_folders_of_generations_in_which_nothing_is_are_cleaned_and_no_others(
    disk: Path,
) -> None:
    store, job, other = LocalStore(str(disk)), disk / "u" / "job", disk / "other"
    for folder in ("step-1.1", "step-2.1", "step-3.1", "mine"):
        (job / folder).mkdir(parents=True)
        (other / folder).mkdir(parents=True)
    (job / "evac-job.json").write_bytes(b"{}")
    (job / "step-2.1" / "__0.manifest.json").write_bytes(b"{}")
    (job / "step-4.1").symlink_to(other / "step-1.1")

    assert await store.clean(older_than=3600) == 0
    assert len(list(job.iterdir())) == 6
    assert await store.clean(older_than=-3600) == 0

    # In other's there is nothing that says whose it is.
    assert sorted(one.name for one in job.iterdir()) == [
        "evac-job.json",
        "mine",
        "step-2.1",
        "step-4.1",
    ]
    assert len(list(other.iterdir())) == 4


async def test_cleaning_takes_nothing_but_our_temporary_files(disk: Path) -> None:
    store = LocalStore(str(disk))
    (disk / "a").mkdir()
    ours = disk / "a" / ".body.evac-tmp-0123456789abcdef"
    others = [
        disk / "a" / n for n in (".hidden", "body", ".x.evac-tmp-1", "x.evac-tmp-" + "0" * 16)
    ]
    for path in (ours, *others):
        path.write_bytes(b"x")
    (disk / "a" / ".l.evac-tmp-0123456789abcdef").symlink_to(others[0])

    assert await store.clean(older_than=-3600) == 1

    assert not ours.exists()
    assert all(path.exists() for path in others)


async def test_more_puts_than_threads_do_not_wait_for_each_other(disk: Path) -> None:
    store, data = LocalStore(str(disk)), memoryview(bytearray(17 * MIB))

    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        for number in range(2 * LIMIT + 1):
            tasks.create_task(store.put(f"a/{number}", data))

    assert {e.nbytes for e in await store.list("a")} == {17 * MIB}


def test_a_put_that_the_interpreters_end_overtakes_is_still_whole(disk: Path) -> None:
    """A trainer's last generation is on its way when the script's last line has run."""
    script = """
import asyncio, sys, threading
from evac.store import open_store
data = memoryview(bytearray(64 << 20))
begun = threading.Event()
put = open_store(sys.argv[1]).put("a/b", data, progress=lambda _: begun.set())
threading.Thread(target=lambda: asyncio.run(put)).start()
begun.wait()
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(
        [sys.executable, "-c", script, f"file://{disk}"], check=True, timeout=60, env=env
    )

    assert (disk / "a/b").stat().st_size == 64 * MIB


async def test_a_name_of_our_temporary_files_is_no_key(disk: Path) -> None:
    store = LocalStore(str(disk))
    with pytest.raises(StoreRejected, match="temporary"):
        await store.put("a/.body.evac-tmp-0123456789abcdef", memoryview(b"x"))


def test_nobody_waits_for_anything_when_the_process_forks(disk: Path) -> None:
    """A data loader's worker is forked from a process whose threads it does not have."""
    script = """
import asyncio, os, sys
from evac.store import open_store
store = open_store(sys.argv[1])
asyncio.run(store.put("parent", memoryview(b"x")))
child = os.fork()
if child == 0:
    asyncio.run(store.put("child", memoryview(b"x")))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", "-c", script, f"file://{disk}"]
    subprocess.run(command, check=True, timeout=60, env=env)

    assert sorted(p.name for p in disk.iterdir()) == ["child", "parent"]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_data_is_synced_before_its_name_and_its_name_before_the_answer(disk: Path) -> None:
    script = """
import asyncio, sys
from evac.store import open_store
asyncio.run(open_store(sys.argv[1]).put("job/body", memoryview(bytearray(3 << 20))))
"""
    trace = disk / "trace"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    calls = "trace=pwrite64,fsync,fdatasync,rename,renameat,renameat2,mkdirat"
    command = ["strace", "-f", "-y", "-e", calls, "-o", str(trace)]
    done = subprocess.run(
        [*command, sys.executable, "-c", script, f"file://{disk}/store"],
        capture_output=True, text=True, timeout=120, env=env, check=False,
    )  # fmt: skip
    if "PTRACE" in done.stderr:
        pytest.skip(f"cannot trace: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr

    text = trace.read_text()
    order = [
        r"fsync\(\d+<[^>]*/store>\)",  # the new folder's name
        r"pwrite64\(\d+<[^>]*/store/job/\.body\.evac-tmp-",
        r"fsync\(\d+<[^>]*/store/job/\.body\.evac-tmp-",
        r"rename\w*\(.*\"body\"",
        r"fsync\(\d+<[^>]*/store/job>\)",
    ]
    # The last of each kind: whatever came before it is covered by it.
    places = [max(found.start() for found in re.finditer(one, text)) for one in order]
    assert places == sorted(places), text
