"""evac beside what else takes checkpoints: how long training waits, until when it is safe, in how much memory.

--size counts the bytes of the state: 200 fp32 tensors in host memory, which change before each
turn. All write to memory (/dev/shm); `total` ends when the checkpoint is whole there (DLRover's
stays in its shared memory). evac runs
without a daemon, so that its writing is in this process as theirs is. `memory` is
what this process holds on to from its first turn on, shared memory that it has touched included,
and the peak of a turn above that; what a process of its own takes (DCP's, DLRover's) is not in it. A peer that is not installed
(`pip install --group peers`), or does not run here, is named and left out.
"""

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import Ratio, Variant, main
from stage import TENSORS, _group

MIB = 1024 * 1024
LIMIT = 60.0

PEERS = ("async_save thread", "async_save process", "torchsnapshot", "DLRover flash memory")
RATIOS = [
    Ratio("vs_memcpy", "stall_ms_per_gb", "evac", "memcpy", 1.5, at_least=False),
    *(
        Ratio(f"vs_{name.replace(' ', '_')}", "stall_ms_per_gb", "evac", name, 1.0, at_least=False)
        for name in PEERS
    ),
]

# Begins a checkpoint, and gives what waits until it is whole.
Begin = Callable[[int], Callable[[], Any]]


def build(folder: Path, size: int) -> Sequence[Variant]:
    """All variants save the same parameters."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["EVAC_SOCKET"] = str(folder / "none.sock")
    count = size // TENSORS // 4
    size = count * 4 * TENSORS
    model = torch.nn.ParameterList([torch.randn(count) for _ in range(TENSORS)])
    _group(dist)
    makers: dict[str, Callable[[Path, Any], Begin]] = {
        "evac": evac,
        "memcpy": memcpy,
        "async_save thread": dcp_thread,
        "async_save process": dcp_process,
        "torchsnapshot": torchsnapshot,
        "DLRover flash memory": dlrover,
    }
    made = []
    for name, make in makers.items():
        place = folder / name.replace(" ", "-")
        place.mkdir()
        try:
            before = resident("VmRSS")
            begin = make(place, model)
            measure(begin, 0, model, place, size)
            held = max(resident("VmRSS") - before, 0)
        except Exception as error:  # noqa: BLE001 - whatever a peer's own failure is, it is told and the others run
            sys.stderr.write(f"{name} is left out: {type(error).__name__}: {error}\n")
            continue
        made.append(Variant(name, turn(begin, model, place, size, held)))
    return made


def turn(
    begin: Begin, model: Any, place: Path, size: int, held: int
) -> Callable[[], Mapping[str, float]]:
    """One contender's turn; it holds *held* bytes between two of them."""
    steps = iter(range(1, 1_000_000))

    def run() -> Mapping[str, float]:
        figures = dict(measure(begin, next(steps), model, place, size))
        figures["memory_gb_per_gb"] += held / size
        return figures

    return run


def measure(begin: Begin, step: int, model: Any, place: Path, size: int) -> Mapping[str, float]:
    """Change the state, save it, and wait until that is whole."""
    for one in model.parameters():
        one.data.add_(1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here: proc(5)
    before, start = resident("VmRSS"), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wait = begin(step)
        stall = time.perf_counter() - start
        wait()
    total = time.perf_counter() - start
    peak = resident("VmHWM") - before
    for old in place.glob("step-*"):
        shutil.rmtree(old, ignore_errors=True)
    gb = size / 1e9
    return {
        "stall_ms_per_gb": stall * 1e3 / gb,
        "total_s_per_gb": total / gb,
        "memory_gb_per_gb": max(peak, 0) / size,
    }


def resident(what: str) -> int:
    """Bytes of this process, from its status page."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise KeyError(what)


def evac(place: Path, model: Any) -> Begin:
    """Own slots, and a thread of this process that commits them."""
    import torch

    from evac.torch import Checkpointer

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = Checkpointer(model=model, optimizer=optimizer, job="peers", store=f"file://{place}")

    def begin(step: int) -> Callable[[], Any]:
        if not saver.stage(step + 1):
            raise RuntimeError(saver.stats.last_reason)
        return lambda: until(lambda: any(place.glob(f"*/*/step-{step + 1}.*/.metadata")))

    return begin


def memcpy(_place: Path, model: Any) -> Begin:
    """What no copy can be faster than; it saves nothing."""
    import ctypes

    import torch

    warm = [torch.ones_like(one) for one in model.parameters()]

    def begin(_step: int) -> Callable[[], Any]:
        for to, source in zip(warm, model.parameters(), strict=True):
            ctypes.memmove(to.data_ptr(), source.data_ptr(), source.nbytes)
        return lambda: None

    return begin


def dcp_thread(place: Path, model: Any) -> Begin:
    """Torch's own, as it comes."""
    from torch.distributed.checkpoint.state_dict_saver import async_save

    def begin(step: int) -> Callable[[], Any]:
        saved: Any = async_save({"model": model.state_dict()}, checkpoint_id=place / f"step-{step}")
        return lambda: getattr(saved, "upload_completion", saved).result()

    return begin


def dcp_process(place: Path, model: Any) -> Begin:
    """Torch's own, which stages in shared memory and writes from another process."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

    shared = DefaultStager(StagingOptions(False, True, False, False))

    def begin(step: int) -> Callable[[], Any]:
        saved: Any = async_save(
            {"model": model.state_dict()},
            checkpoint_id=place / f"step-{step}",
            async_stager=shared,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        return lambda: getattr(saved, "upload_completion", saved).result()

    return begin


def torchsnapshot(place: Path, model: Any) -> Begin:
    """Its asynchronous snapshot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchsnapshot import Snapshot  # type: ignore[import-not-found] # optional

    def begin(step: int) -> Callable[[], Any]:
        pending = Snapshot.async_take(f"{place}/step-{step}", {"model": model})
        return lambda: pending.wait()

    return begin


def dlrover(place: Path, model: Any) -> Begin:
    """Flash checkpoint, into shared memory alone: its commit to disk did not end where this was tried."""
    os.environ.setdefault("ELASTIC_JOB_NAME", f"evac-bench-{os.getpid()}")
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("LOCAL_WORLD_SIZE", "1")
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import (  # type: ignore[import-not-found] # optional
            StorageType,
        )
        from dlrover.trainer.torch.flash_checkpoint.ddp import (  # type: ignore[import-not-found] # optional
            DdpCheckpointer,
        )

    saver = DdpCheckpointer(str(place))

    def begin(step: int) -> Callable[[], Any]:
        saver.save_checkpoint(step, model.state_dict(), storage_type=StorageType.MEMORY)
        return lambda: None

    return begin


def until(there: Callable[[], bool]) -> None:
    """Wait until it is *there*."""
    limit = time.perf_counter() + LIMIT
    while not there():
        if time.perf_counter() > limit:
            raise TimeoutError(f"not whole after {LIMIT:.0f} s")
        time.sleep(0.0005)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="evac-bench-") as temporary:
        # DLRover leaves its shared memory behind.
        atexit.register(lambda: Path("/dev/shm/ckpt_shm_0").unlink(missing_ok=True))
        sys.exit(
            main(
                "peers",
                lambda size: build(Path(temporary), size),
                RATIOS,
                size=256 * MIB,
                rounds=3,
            )
        )
