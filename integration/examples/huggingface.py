"""A tiny GPT-2 under Hugging Face's Trainer. Kill it at any moment, start it again: it goes on.

    python -m integration.examples.huggingface --store file:///tmp/evac-store --steps 60

The two lines of evac are marked. Everything is made here: no network, no files. With evacd on the
node, leave out `--store`.
"""

import argparse
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from evac.torch.huggingface import EvacCallback


class Sums(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences that count upwards, from everywhere."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, n: int) -> dict[str, torch.Tensor]:
        tokens = (n + torch.arange(16)) % 64
        return {"input_ids": tokens, "labels": tokens}


def train(folder: str, steps: int, *callbacks: TrainerCallback, **evac: Any) -> Trainer:
    """Train to *steps*, from wherever the last start of this job has come to."""
    torch.manual_seed(7)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    )
    callback = EvacCallback(job="example-hf", **evac)  # 1
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            warmup_steps=5,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Sums(),
        callbacks=[callback, *callbacks],
    )
    trainer.train(resume_from_checkpoint=callback.checkpoint(trainer))  # 2
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", help="where evacd is not: file:///folder, s3://bucket/prefix...")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    train("/tmp/evac-example", given.steps, store=given.store, every=5)
