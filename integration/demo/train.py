"""One rank of the demo's training run: an ordinary loop, and three lines of evac.

Rank and world come from the environment, as torchrun sets them. Each step's loss goes to a
file as an exact hexadecimal float, so that two runs can be compared to the last bit.
"""

import argparse
import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evac.torch import Checkpointer
from integration.demo.gpt import Gpt, ShuffledLoader, Text


def main() -> None:
    """Train, and resume where a predecessor was cut off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--losses", type=Path, required=True, help="folder for the loss files")
    parser.add_argument("--meet", type=Path, required=True, help="file where the ranks meet")
    parser.add_argument(
        "--every", type=int, default=0, help="stage every so many steps; 0: no evac"
    )
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{args.meet}", rank=rank, world_size=world)
    torch.manual_seed(1000 + rank)
    text = Text()
    torch.manual_seed(7)
    model = DistributedDataParallel(Gpt(len(text.vocabulary)))
    torch.manual_seed(1000 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    loader = ShuffledLoader(text, batch=8, rank=rank, world=world, seed=rank)

    checkpointer = done = None
    if args.every:
        checkpointer = Checkpointer(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            loader=loader,
            every=args.every,
        )
        done = checkpointer.restore()
    first = (done or 0) + 1
    with (args.losses / f"rank{rank}.txt").open("w", buffering=1) as losses:
        losses.write(f"resumed {done}\n" if done is not None else "fresh\n")
        for step, (tokens, targets) in enumerate(loader, start=first):
            loss = model(tokens, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.write(f"{step} {loss.item().hex()}\n")
            if checkpointer:
                checkpointer.step(step)
            if step == args.steps:
                break
    if checkpointer:
        checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
