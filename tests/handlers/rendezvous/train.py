"""The smallest elastic training run: an all-reduce per step, and a line of JSON per event.

Its state is one number that every step changes by what all ranks agree on, so that a step that
was lost or done twice shows.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    folder, node, steps, pause = (
        Path(sys.argv[1]),
        sys.argv[2],
        int(sys.argv[3]),
        float(sys.argv[4]),
    )
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
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    saved = folder / "saved"
    # Only the first rank reads: another's view of the file may be a step older.
    mine = int(saved.read_text()) if about["rank"] == 0 and saved.exists() else 0
    step = torch.tensor([mine])
    dist.broadcast(step, 0)
    while int(step) < steps:
        one = torch.ones(1)
        dist.all_reduce(one)
        assert int(one) == about["world"]
        time.sleep(pause)
        step += 1
        # Both or neither: the agent stops a worker at any time.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if about["rank"] == 0:
            aside = folder / "saved.tmp"
            aside.write_text(str(int(step)))
            aside.replace(saved)
        tell("step", step=int(step))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    dist.destroy_process_group()
    tell("finished")


if __name__ == "__main__":
    main()
