"""The training run of tests/handlers/rendezvous/train.py under torchft: one process per node, no torchrun.

``torchft_train.py lighthouse`` serves the Lighthouse, and prints its address;
``torchft_train.py FOLDER NODE PAUSE`` is a node. torchft forms a quorum at every step and re-forms its
process group within the process; who comes gets the state from a peer.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__


def lighthouse() -> None:
    """Serve until SIGTERM; at torchft's defaults, save that two replicas will do."""
    from torchft.coordination import LighthouseServer  # type: ignore[import-not-found] # optional

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=2)
    print(server.address(), flush=True)
    signal.pause()


def train(folder: Path, node: str, pause: float) -> None:
    """Steps until killed; each that is committed becomes an event, as train.py's do."""
    from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found] # optional

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    log = os.open(folder / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    state = {"w": torch.zeros(1)}
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        load_state_dict=lambda found: state.update(found),
        state_dict=lambda: dict(state),
        min_replica_size=2,
        replica_id=node,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    while True:
        manager.start_quorum()
        gradient = torch.ones(1)
        manager.allreduce(gradient).wait()
        if manager.should_commit():
            state["w"] += gradient
            event = {
                "at": time.perf_counter(),
                "event": "step",
                "node": node,
                "rank": manager.participating_rank(),
                "world": manager.num_participants(),
                "pid": os.getpid(),
                "restarts": 0,
                "rendezvous": "",
                "step": manager.current_step(),
            }
            os.write(log, (json.dumps(event) + "\n").encode())
        time.sleep(pause)


if __name__ == "__main__":
    if sys.argv[1] == "lighthouse":
        lighthouse()
    else:
        train(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
