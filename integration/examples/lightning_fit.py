"""A tiny module under Lightning's Trainer. Kill it at any moment, start it again: it goes on.

    python -m integration.examples.lightning_fit --store file:///tmp/evac-store --epochs 20

With evacd on the node, leave out `--store`. The line of evac is marked.
"""

import argparse
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torchdata.stateful_dataloader import StatefulDataLoader

from evac.torch.lightning import EvacCallback


class Module(LightningModule):
    """Dropout, AdamW, a schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch: tuple[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of one batch."""
        loss: torch.Tensor = self.net(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW and a cosine."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def fit(folder: str, epochs: int, *callbacks: Callback, **evac: Any) -> Trainer:
    """Train for *epochs*, from wherever the last start of this job has come to."""
    torch.manual_seed(7)
    data = torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
    samples = torch.utils.data.TensorDataset(data)
    loader: StatefulDataLoader[Any] = StatefulDataLoader(samples, batch_size=4, shuffle=True)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[EvacCallback(job="example-lightning", **evac), *callbacks],  # 1
    )
    trainer.fit(Module(), loader)
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", help="where evacd is not: file:///folder, s3://bucket/prefix...")
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()
    fit("/tmp/evac-example", given.epochs, store=given.store, every=5)
