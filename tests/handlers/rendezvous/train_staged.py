"""`train.py` with state that evacd holds: each step is staged, and a new world goes on from what was."""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from evac.torch import Checkpointer


def main() -> None:
    folder, node, pause = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    log = os.open(folder / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    about = {
        "node": node,
        "rank": int(os.environ["RANK"]),
        "world": int(os.environ["WORLD_SIZE"]),
        "pid": os.getpid(),
        "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "rendezvous": os.environ["EVAC_RENDEZVOUS"],
    }

    def tell(event: str, **more: object) -> None:
        line = {"at": time.perf_counter(), "event": event, **about, **more}
        os.write(log, (json.dumps(line) + "\n").encode())

    tell("started")
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    checkpointer = Checkpointer(model=model, optimizer=optimizer, every=1)
    step = checkpointer.restore() or 0
    while True:
        shared = torch.tensor([float(about["rank"] == 0 and (folder / "finish").exists())])
        dist.all_reduce(shared)
        if shared[0]:
            break
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        checkpointer.step(step)
        tell("step", step=step)
        time.sleep(pause)
    checkpointer.close()
    dist.destroy_process_group()
    tell("finished")


if __name__ == "__main__":
    main()
