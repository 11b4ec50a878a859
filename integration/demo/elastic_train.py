"""A worker of the elastic demo: plain DDP under torchrun, and three lines of evac.

What a step computes does not depend on how many ranks share it: the batch of a step is drawn from the
step's number and dealt out. So the losses of a run that loses and gains nodes can be held to those of
one that never did, up to the order of its sums.
"""

import argparse
import logging
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evac.torch import Checkpointer
from integration.demo.gpt import CONTEXT, Gpt, Text
from integration.demo.stage import end_with_parent

# Divides into two and three shares.
BATCH = 6


def main() -> None:
    """Train from where the job is, with who is here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--losses", type=Path, required=True, help="file that losses are added to")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds that a step takes more")
    parser.add_argument("--plain", action="store_true", help="without evac")
    args = parser.parse_args()
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    text = Text()
    # In eval mode there is no dropout: its random numbers would depend on the ranks.
    model = DistributedDataParallel(Gpt(len(text.vocabulary)).eval())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpointer = done = None
    if not args.plain:
        checkpointer = Checkpointer(model=model, optimizer=optimizer, every=1)
        done = checkpointer.restore()
    with args.losses.open("a", buffering=1) as losses:
        for step in range((done or 0) + 1, args.steps + 1):
            tokens = batch(text, step)[rank::world]
            loss = model(tokens[:, :-1], tokens[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            whole = loss.detach().clone()
            dist.all_reduce(whole)
            if rank == 0:
                losses.write(f"{time.monotonic():.3f} {step} {world} {float(whole) / world:.6f}\n")  # noqa: TID251 - the demo measures in real time
            if checkpointer:
                checkpointer.step(step)
            time.sleep(args.pause)
    if checkpointer:
        checkpointer.close()
    dist.destroy_process_group()


def batch(text: Text, step: int) -> torch.Tensor:
    """(BATCH, CONTEXT + 1) windows of the text, the same for this step in every run."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text.tokens) - CONTEXT - 1, (BATCH, 1), generator=generator)
    return text.tokens[starts + torch.arange(CONTEXT + 1)]


if __name__ == "__main__":
    main()
