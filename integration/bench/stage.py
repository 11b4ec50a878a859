"""How long one checkpoint holds up training: until the state may be changed again.

--size counts the bytes of the state: 200 fp32 tensors in host memory. evac stages into sealed
shared memory as a daemon hands it out; what a daemon does with it afterwards is left out, and
so is what the others write once they have let training go on. They write to memory (/dev/shm).
"""

import ctypes
import os
import resource
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harness import Ratio, Variant, main

if TYPE_CHECKING:
    from evac import Client

MIB = 1024 * 1024
TENSORS = 200

RATIOS = [
    Ratio("vs_memcpy", "stall_ms_per_gb", "evac", "memcpy", 1.5, at_least=False),
    Ratio("vs_dcp_thread", "stall_ms_per_gb", "evac", "async_save thread", 1.0, at_least=False),
    Ratio("vs_dcp_process", "stall_ms_per_gb", "evac", "async_save process", 1.0, at_least=False),
]


class Slots:
    """The daemon's half of a client: sealed memory whose slots are free again at once."""

    connected = True
    connection = 1
    prefix = "bench/stage"

    def __init__(self, store: str) -> None:
        self.stores = (store,)
        self._slots: list[Any] = []
        self._turn = 0

    def on_order(self, function: object) -> None:
        """No notice comes here."""

    def on_advice(self, function: object) -> None:
        """Nor any advice."""

    def wait_connected(self, timeout: float) -> bool:
        """As of `evac.Client`; so are the others."""
        return True

    def reserve(self, *, nbytes: int, slots: int, **_: object) -> None:
        """Hand out memory that is faulted in, as it is after the first few stages."""
        import fcntl

        from evac._memory import FIXED_SIZE, SlotMemory, map_slot

        for number in range(slots):
            fd = os.memfd_create("slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, FIXED_SIZE | fcntl.F_SEAL_SEAL)
            slot = SlotMemory(number, 1, map_slot(fd, nbytes))
            os.close(fd)
            slot.populate()
            self._slots.append(slot)

    @property
    def openings(self) -> int:
        """All of them have come."""
        return len(self._slots)

    def acquire(self, timeout: float) -> Any:
        """Each in turn."""
        self._turn += 1
        return self._slots[self._turn % len(self._slots)]

    def staged(self, slot: Any, step: int, **_: object) -> None:
        """Nothing is kept."""

    def leave(self) -> None:
        """Nothing is left."""


def build(folder: Path, size: int) -> Sequence[Variant]:
    """All variants save the same parameters, which change before each turn."""
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

    from evac.torch import Checkpointer

    torch.set_num_threads(1)
    count = size // TENSORS // 4
    size = count * 4 * TENSORS
    model = torch.nn.ParameterList([torch.randn(count) for _ in range(TENSORS)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _group(dist)
    saver = Checkpointer(
        model=model,
        optimizer=optimizer,
        job="stage",
        client=cast("Client", Slots(f"file://{folder}/store")),
    )
    warm = torch.ones(count * TENSORS).chunk(TENSORS)
    state = dict(model.state_dict())
    cached = DefaultStager(StagingOptions(False, False, False, False))
    shared = DefaultStager(StagingOptions(False, True, False, False))
    steps = iter(range(1, 1_000_000))

    def memcpy() -> None:
        for to, source in zip(warm, model.parameters(), strict=True):
            ctypes.memmove(to.data_ptr(), source.data_ptr(), source.nbytes)

    def evac() -> None:
        if not saver.stage(next(steps)):
            raise RuntimeError(saver.stats.last_reason)

    def asynchronous(**settings: Any) -> Callable[[], Any]:
        def begin() -> Any:
            return async_save({"model": state}, checkpoint_id=folder / "dcp", **settings)

        return begin

    def torch_save() -> None:
        torch.save(state, folder / "state.pt")

    process = {"async_stager": shared, "async_checkpointer_type": AsyncCheckpointerType.PROCESS}

    def variant(name: str, begin: Callable[[], Any]) -> Variant:
        def run() -> Mapping[str, float]:
            with torch.no_grad():
                for one in model.parameters():
                    one.add_(1)
            return _stall(begin, folder, size)

        return Variant(name, run)

    return [
        variant("evac", evac),
        variant("memcpy", memcpy),
        variant("async_save thread", asynchronous()),
        variant("async_save cached", asynchronous(async_stager=cached)),
        variant("async_save process", asynchronous(**process)),
        variant("torch.save", torch_save),
    ]


def _stall(begin: Callable[[], Any], folder: Path, size: int) -> Mapping[str, float]:
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        under_way = begin()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    if under_way is not None:
        getattr(under_way, "upload_completion", under_way).result()
    shutil.rmtree(folder / "dcp", ignore_errors=True)
    (folder / "state.pt").unlink(missing_ok=True)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"stall_ms_per_gb": seconds * 1e3 / (size / 1e9), "cpu_s_per_gb": cpu / (size / 1e9)}


def _group(dist: Any) -> None:
    """A world of one; async_save's process asks for a group, at an address it can reach."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=0, world_size=1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="evac-bench-") as temporary:
        sys.exit(
            main(
                "stage",
                lambda size: build(Path(temporary), size),
                RATIOS,
                size=512 * MIB,
                rounds=5,
                warmup=1,
            )
        )
