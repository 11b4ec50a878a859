"""What is killed, and what comes after it: a training process, one that resumes, and DLRover's agent.

Each step adds one to every number of the state, so that a restored state tells its step, and one
that is put together of two steps shows it.
"""

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from losing.plan import (
    DCP_PROCESS,
    DCP_THREAD,
    DLROVER,
    EVAC,
    EVAC_ALONE,
    EVERY,
    FROZEN,
    HANGS,
    HUNG,
    PARTS,
    SNAPSHOT,
    Task,
)

LIMIT_SECONDS = 60.0


def main(arguments: Sequence[str]) -> int:
    """``train``, ``resume`` or ``agent``, and a `Task` as JSON."""
    # What libraries print is not for who reads the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    what, task = arguments[0], Task(**json.loads(arguments[1]))
    warnings.simplefilter("ignore")

    def say(*words: object) -> None:
        os.write(answers, (" ".join(map(str, words)) + "\n").encode())

    {"train": train, "resume": resume, "agent": agent}[what](task, say)
    return 0


def build(task: Task) -> Any:
    """A model of *task.size* bytes, all zero."""
    import torch

    class Counter(torch.nn.Module):
        """Its gradients are -1 throughout: plain SGD at a rate of 1 adds one."""

        def __init__(self) -> None:
            super().__init__()
            count = task.size // PARTS // 4
            self.parts = torch.nn.ParameterList([torch.zeros(count) for _ in range(PARTS)])

        def forward(self) -> Any:
            return -sum(part.sum() for part in self.parts)

    torch.set_num_threads(1)
    return Counter()


def train(task: Task, say: Callable[..., None]) -> None:
    """Train until killed."""
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", rank=task.rank, world_size=task.world)
    core = build(task)
    model = torch.nn.parallel.DistributedDataParallel(core) if task.world > 1 else core
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    begin = saving(task, core, model, optimizer)
    for step in range(1, 1000):
        if task.rank == 1 and task.moment in (HUNG, FROZEN) and step == HANGS[task.moment]:
            say("stopped")
            if task.moment == FROZEN:
                os.kill(os.getpid(), signal.SIGSTOP)
            signal.pause()
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        say("step", step)
        if step % EVERY == 0:
            say("began", step)
            wait = begin(step)
            say("staged", step)
            if task.moment != FROZEN or step + 1 != HANGS[FROZEN]:
                wait()
                say("whole", step)


def saving(task: Task, core: Any, model: Any, optimizer: Any) -> Callable[[int], Callable[[], Any]]:
    """Begins a checkpoint, and gives what waits until it is whole."""
    import peers

    place = Path(task.place)
    theirs = {
        DCP_THREAD: peers.dcp_thread,
        DCP_PROCESS: peers.dcp_process,
        SNAPSHOT: peers.torchsnapshot,
        DLROVER: peers.dlrover,
    }
    if task.system in theirs:
        return theirs[task.system](place, core)
    from evac.torch import Checkpointer

    saver = Checkpointer(model=model, optimizer=optimizer, job="lost", store=f"file://{place}")

    def begin(step: int) -> Callable[[], Any]:
        until = time.perf_counter() + LIMIT_SECONDS
        while not saver.stage(step):
            if time.perf_counter() > until:
                raise RuntimeError(saver.stats.last_reason)
            time.sleep(0.002)
        if task.system == EVAC:
            return lambda: None
        return lambda: peers.until(lambda: any(place.glob(f"*/*/step-{step}.*/.metadata")))

    return begin


def resume(task: Task, say: Callable[..., None]) -> None:
    """Load what can be loaded; say the least and the most of all numbers that came back."""
    import torch

    core = build(task)
    try:
        loaded = load(task, core)
    except Exception as error:  # noqa: BLE001 - whatever a system's own failure is, nothing loads, and it is told
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        loaded = False
    if not loaded:
        say("nothing")
        return
    with torch.no_grad():
        low = min(float(part.min()) for part in core.parts)
        high = max(float(part.max()) for part in core.parts)
    say("restored", int(low), int(high))


def load(task: Task, core: Any) -> bool:
    """Whether anything came back, by the system's own means."""
    import torch

    place = Path(task.place)
    if task.system in (EVAC, EVAC_ALONE):
        from evac.torch import Checkpointer

        optimizer = torch.optim.SGD(core.parameters(), lr=1.0)
        saver = Checkpointer(model=core, optimizer=optimizer, job="lost", store=f"file://{place}")
        return saver.restore() is not None
    if task.system == DLROVER:
        from dlrover.trainer.torch.flash_checkpoint.ddp import (  # type: ignore[import-not-found] # optional
            DdpCheckpointer,
        )

        kept = DdpCheckpointer(str(place))  # what it loads lies in memory that ends with it
        state = kept.load_checkpoint()
        if state:
            core.load_state_dict(state)
        return bool(state)
    mark = ".snapshot_metadata" if task.system == SNAPSHOT else ".metadata"
    whole = [one.parent for one in place.glob(f"step-*/{mark}")]
    for newest in sorted(whole, key=lambda one: int(one.name[5:]), reverse=True):
        if task.system == SNAPSHOT:
            from torchsnapshot import Snapshot  # type: ignore[import-not-found] # optional

            Snapshot(str(newest)).restore({"model": core})
        else:
            from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

            state = {"model": core.state_dict()}
            dcp_load(state, checkpoint_id=newest)
            core.load_state_dict(state["model"])
        return True
    return False


def agent(_task: Task, say: Callable[..., None]) -> None:
    """What of `dlrover-run` keeps checkpoints: it outlives the trainer, and not its job."""
    from dlrover.python.elastic_agent.torch.ckpt_saver import (  # type: ignore[import-not-found] # optional
        AsyncCheckpointSaver,
    )

    AsyncCheckpointSaver.start_async_saving_ckpt()
    say("ready")
    threading.Event().wait()
