"""The smallest elastic training run: an all-reduce per step, and a line of JSON per event.

Its state is one number that every step changes by what all ranks agree on, so that a step that
was lost or done twice shows.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    folder, node, pause = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    # How long a collective waits for who says nothing any more.
    patience = float(os.environ.get("GROUP_SECONDS", "60"))
    log = os.open(folder / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    about = {
        "node": node,
        "rank": int(os.environ["RANK"]),
        "world": int(os.environ["WORLD_SIZE"]),
        "pid": os.getpid(),
        "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "rendezvous": os.environ.get("EVAC_RENDEZVOUS", ""),
    }

    def tell(event: str, **more: object) -> None:
        line = {"at": time.perf_counter(), "event": event, **about, **more}
        os.write(log, (json.dumps(line) + "\n").encode())

    tell("started")
    dist.init_process_group("gloo", timeout=timedelta(seconds=patience))
    # Only the first rank reads: another may see a step less. What it told is what it has done.
    mine = last_step(folder / "events.jsonl") if about["rank"] == 0 else 0
    step = torch.tensor([mine])
    dist.broadcast(step, 0)
    while True:
        first = about["rank"] == 0
        shared = torch.tensor([1.0, float(first and (folder / "finish").exists())])
        dist.all_reduce(shared)
        assert int(shared[0]) == about["world"]
        if shared[1]:
            break
        time.sleep(pause)
        step += 1
        tell("step", step=int(step))
    dist.destroy_process_group()
    tell("finished")


def last_step(path: Path) -> int:
    """The last that a first rank has told of."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return max((e["step"] for e in events if e["event"] == "step" and e["rank"] == 0), default=0)


if __name__ == "__main__":
    main()
