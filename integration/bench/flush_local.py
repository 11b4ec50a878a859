"""Shared memory to a synced local file, against the disk's ceiling and torch's own savers.

--size counts the bytes of one body. Files go to the folder in EVAC_BENCH_DIR (default:
/var/tmp), which should be on the disk that is asked about.
"""

import asyncio
import json
import mmap
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness import Ratio, Variant, main

from evac.store.local import LocalStore
from evacd.workloads import memory

MIB = 1024 * 1024
PIECE = 16 * MIB
PAGE = 4096
TENSORS = 200

RATIOS = [
    Ratio("of_ceiling", "gb_per_s", "evac", "ceiling", 0.95),
    Ratio("cpu", "cpu_s_per_gb", "evac", None, 0.05, at_least=False),
    Ratio("vs_dcp_save", "gb_per_s", "evac", "dcp.save", 3.0),
]


def build(folder: Path, size: int) -> Sequence[Variant]:
    """All variants write the same bytes, and each deletes its file when the clock has stopped."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    size -= size % PIECE
    # As the daemon makes a slot, in huge pages where the kernel gives any.
    region = memory.build(size + PAGE, lambda: False)
    fd, body = region.fd, region.view(PAGE, size)
    writable = mmap.mmap(fd, size + PAGE)
    # Random, so that no layer below can compress or share it; the ranks' real bytes are no better.
    for start in range(0, size, PIECE):
        os.pwrite(fd, os.urandom(min(PIECE, size - start)), PAGE + start)
    # As the daemon's own mapping is by the time of a flush: the checksums have been there.
    for start in range(0, size, PAGE):
        body[start]
    flat = torch.frombuffer(writable, dtype=torch.float32, offset=PAGE)
    state = {f"layer.{i}": part for i, part in enumerate(flat.chunk(TENSORS))}
    store = LocalStore(str(folder))

    loop = asyncio.Runner()

    def evac() -> None:
        loop.run(store.put("job/body.bin", body))

    def torch_save() -> None:
        with (folder / "job").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    def dcp_save() -> None:
        writer = FileSystemWriter(folder / "job", sync_files=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group: on purpose
            save(state, storage_writer=writer)

    def bare() -> None:
        _bare(folder / "job", body)

    variants = [
        Variant("evac", _timed(evac, folder, size)),
        Variant("bare pwrite loop", _timed(bare, folder, size)),
        Variant("dcp.save", _timed(dcp_save, folder, size)),
        Variant("torch.save", _timed(torch_save, folder, size)),
    ]
    if shutil.which("fio"):
        # Physically scattered pages make smaller requests and a slower disk, by up to a third here. So
        # the ceiling writes from the very pages that we do; fio's usual 64 MiB is shown beside it.
        same = ["--bs=4M", f"--iodepth={size // (4 * MIB)}"]
        same.append(f"--iomem=mmapshared:/proc/{os.getpid()}/fd/{fd}")
        variants += [
            Variant("ceiling", lambda: _fio(folder, size, same)),
            Variant("fio, own buffers", lambda: _fio(folder, size, ["--bs=4M", "--iodepth=16"])),
        ]
    else:
        sys.stderr.write("no fio here: the ceiling is a bare pwrite loop\n")
        variants[1] = Variant("ceiling", variants[1].run)
    return variants


def _timed(work: Callable[[], None], folder: Path, size: int) -> Callable[[], Mapping[str, float]]:
    def run() -> Mapping[str, float]:
        # What the one before left to be written is not this one's to wait for.
        os.sync()
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        work()
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        _empty(folder)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"gb_per_s": size / 1e9 / seconds, "cpu_s_per_gb": cpu / (size / 1e9)}

    return run


def _fio(folder: Path, size: int, how: Sequence[str]) -> Mapping[str, float]:
    """The rate that fio itself reports, its start-up left out; its CPU time includes that."""
    os.sync()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["fio", "--name=ceiling", f"--directory={folder}", f"--size={size}", "--rw=write"]
    command += ["--direct=1", "--ioengine=libaio", "--end_fsync=1", "--fallocate=posix"]
    command += ["--randrepeat=0", "--refill_buffers=0", "--output-format=json", *how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    _empty(folder)
    written = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["write"]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"gb_per_s": written["bw_bytes"] / 1e9, "cpu_s_per_gb": cpu / (size / 1e9)}


def _bare(path: Path, body: memoryview) -> None:
    """The least that can be done: four threads, each its own quarter, one fsync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    os.posix_fallocate(fd, 0, body.nbytes)
    starts = range(0, body.nbytes, PIECE)

    def write(mine: Sequence[int]) -> None:
        for start in mine:
            os.pwrite(fd, body[start : start + PIECE], start)

    threads = [threading.Thread(target=write, args=(starts[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.fsync(fd)
    os.close(fd)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(
        dir=os.environ.get("EVAC_BENCH_DIR", "/var/tmp"), prefix="evac-bench-"
    ) as temporary:
        sys.exit(
            main(
                "flush_local",
                lambda size: build(Path(temporary), size),
                RATIOS,
                size=1024 * MIB,
                rounds=5,
            )
        )
