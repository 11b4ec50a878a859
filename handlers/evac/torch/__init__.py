"""Checkpoints for torch: staged in place as a DCP file, committed whole, resumed to the bit."""

from evac.torch.checkpointer import Checkpointer
from evac.torch.resumable import Resumable
from evac.torch.stats import Stats

__all__ = ["Checkpointer", "Resumable", "Stats"]
