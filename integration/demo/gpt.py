"""A small GPT on text that ships with the repository, and a loader that can resume.

Everything that a real run has and that a careless resume loses is here: AdamW's moments, a
learning-rate schedule, dropout (so that each rank's RNG matters) and shuffled data.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

TEXT = Path(__file__).parents[2] / "LICENSE"
CONTEXT = 64


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each with dropout."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        batch, time, width = x.shape
        qkv = self.qkv(self.before_attention(x))
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in qkv.chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(x.shape)))
        out: Tensor = x + self.dropout(self.mlp(self.before_mlp(x)))
        return out


class Gpt(nn.Module):
    """Byte-level language model; `forward` returns the mean cross-entropy."""

    def __init__(self, vocabulary: int, width: int = 128, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout=0.1) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight  # tied, as GPTs have it
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Both (batch, time) of int64; a 0-d loss."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Text:
    """The text as numbers."""

    def __init__(self, path: Path = TEXT) -> None:
        characters = path.read_text()
        self.vocabulary = sorted(set(characters))
        index = {character: number for number, character in enumerate(self.vocabulary)}
        self.tokens = torch.tensor([index[character] for character in characters])


class ShuffledLoader:
    """Endless batches in an order that is drawn anew each epoch, and can be resumed.

    Its generator is its own: what dropout draws does not move the data, nor the reverse.
    """

    def __init__(self, text: Text, *, batch: int, rank: int, world: int, seed: int) -> None:
        self._tokens = text.tokens
        self._starts = torch.arange(0, len(text.tokens) - CONTEXT - 1, CONTEXT // 2)[rank::world]
        self._batch = batch
        self._generator = torch.Generator().manual_seed(seed)
        self._epoch_began = self._generator.get_state()
        self._order = torch.randperm(len(self._starts), generator=self._generator)
        self._position = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of inputs and targets, each (batch, CONTEXT)."""
        while True:
            if self._position + self._batch > len(self._starts):
                self._begin_epoch()
            chosen = self._order[self._position : self._position + self._batch]
            self._position += self._batch
            windows = self._starts[chosen][:, None] + torch.arange(CONTEXT + 1)
            tokens = self._tokens[windows]
            yield tokens[:, :-1], tokens[:, 1:]

    def _begin_epoch(self) -> None:
        self._epoch_began = self._generator.get_state()
        self._order = torch.randperm(len(self._starts), generator=self._generator)
        self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch's order was drawn, and how far into it the run is."""
        return {"epoch_began": self._epoch_began, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw the same order again and go to the same place in it."""
        self._generator.set_state(state["epoch_began"])
        self._begin_epoch()
        self._position = state["position"]
