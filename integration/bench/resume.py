"""How soon a restarted job has its state back: out of this node's memory, and from the local disk.

--size counts the bytes of model and optimizer together. A job stages with a real evacd, saves the same state by
`dcp.save`, and is killed. Then its state is loaded into a model that was just built: from evacd's memory, each
chunk checked, and by `dcp.load` from a disk that has to be read (EVAC_BENCH_DIR, default: /var/tmp).
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import Ratio, Variant, main

MIB = 1024 * 1024
TENSORS = 200
STEP = 7
LIMIT_SECONDS = 120.0

RATIOS = [
    Ratio("fds", "adopt_ms", "fds alone", None, 10.0, at_least=False),
    Ratio("vs_dcp_load", "seconds", "dcp.load", "evac", 2.0),
]


def job(size: int) -> tuple[Any, Any]:
    """A model and its optimizer, which has state."""
    import torch

    torch.set_num_threads(1)
    # The optimizer keeps two numbers for each one of the model.
    count = size // TENSORS // 4 // 3
    model = torch.nn.ParameterList([torch.randn(count) for _ in range(TENSORS)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def staged(size: int, checkpoint: str) -> None:
    """The job that is killed."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_saver import save

    from evac.torch import Checkpointer

    model, optimizer = job(size)
    saver = Checkpointer(model=model, optimizer=optimizer, job="resume", slots=1)
    if not saver.stage(STEP):
        raise RuntimeError(saver.stats.last_reason)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group: on purpose
        save(state, storage_writer=FileSystemWriter(checkpoint, sync_files=True))
    # Accepted, and summed.
    while not _summed(saver._client.status()):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def _summed(status: Mapping[str, Any]) -> bool:
    slots = [slot for one in status["workloads"] for slot in one["slots"]]
    return any(slot["state"] == "complete" and slot["summed"] == slot["chunks"] for slot in slots)


def build(folder: Path, size: int) -> Sequence[Variant]:
    """All variants load the same state into the same model."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    import evac
    from evac.torch import Checkpointer

    checkpoint = folder / "dcp"
    killed = [sys.executable, __file__, "--staged", str(size), str(checkpoint)]
    subprocess.run(killed, check=False)
    model, optimizer = job(size)

    def fds() -> Mapping[str, float]:
        with evac.connect("resume", rank=1, world=2) as client:
            if not client.wait_connected(LIMIT_SECONDS):
                raise RuntimeError(client.absence)
            started = time.perf_counter()
            with client.adopt() as adoption:
                took = time.perf_counter() - started
                if len(adoption) != 1:
                    raise RuntimeError(f"{len(adoption)} slots adopted")
        return {"adopt_ms": took * 1e3}

    def ours() -> Mapping[str, float]:
        saver = Checkpointer(model=model, optimizer=optimizer, job="resume", slots=1)
        started = time.perf_counter()
        if saver.restore() != STEP:
            raise RuntimeError("another step was restored")
        took = time.perf_counter() - started
        saver.close()
        return {"seconds": took, "gb_per_s": size / 1e9 / took}

    def theirs() -> Mapping[str, float]:
        _forget(checkpoint)
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            states = get_state_dict(model, optimizer)
            load({"model": states[0], "optimizer": states[1]}, checkpoint_id=checkpoint)
        set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1])
        took = time.perf_counter() - started
        return {"seconds": took, "gb_per_s": size / 1e9 / took}

    return [
        Variant("fds alone", fds),
        Variant("evac", ours),
        Variant("dcp.load", theirs),
    ]


def _forget(folder: Path) -> None:
    """Have the disk read again: cold is what a machine is whose job was just restarted elsewhere."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def daemon(folder: Path, size: int) -> Iterator[None]:
    """An evacd whose store is there and is never needed."""
    command = [
        sys.executable, "-m", "evacd", "run", "--store", f"file://{folder}/store",
        "--cloud", "none", "--socket", f"{folder}/evacd.sock",
        "--admin-socket", f"{folder}/admin.sock", "--state-dir", f"{folder}/state",
        "--memory-budget", str(2 * size + 64 * MIB), "--no-quiet", "--shutdown-watch", "off",
        "--no-http",
    ]  # fmt: skip
    os.environ["EVAC_SOCKET"] = f"{folder}/evacd.sock"
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        running.kill()
        running.wait()


def measured(folder: Path, size: int) -> Sequence[Variant]:
    """As `build`, once the daemon listens."""
    until = time.perf_counter() + LIMIT_SECONDS
    while not (folder / "evacd.sock").exists():
        if time.perf_counter() > until:
            raise RuntimeError((folder / "log").read_text())
        time.sleep(0.05)
    return build(folder, size)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--staged"]:
        staged(int(sys.argv[2]), sys.argv[3])
    where = Path(tempfile.mkdtemp(dir=os.environ.get("EVAC_BENCH_DIR", "/var/tmp")))
    try:
        # Room for any --size that this machine can hold twice.
        with daemon(where, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4):
            sys.exit(
                main(
                    "resume",
                    lambda size: measured(where, size),
                    RATIOS,
                    size=768 * MIB,
                    rounds=5,
                    warmup=1,
                )
            )
    finally:
        shutil.rmtree(where)
