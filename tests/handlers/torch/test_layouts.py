"""What was saved in one layout and world comes back in another, to the last bit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.handlers.torch import layouts, ranks

SAVED = {2: ["ddp", "fsdp", "tp"], 4: ["fsdp", "hsdp", "tp"]}
# By the number of ranks that restore: what was saved how, and how it is laid out now.
CELLS = {
    1: [(f"{layout}{world}", "plain") for world, saved in SAVED.items() for layout in saved],
    2: [
        ("ddp2", "ddp"), ("fsdp2", "fsdp"), ("tp2", "tp"),
        ("fsdp4", "fsdp"), ("hsdp4", "fsdp"), ("tp4", "tp"), ("ddp2", "fsdp"), ("fsdp2", "tp"),
    ],
    3: [("ddp2", "ddp"), ("fsdp2", "fsdp"), ("tp2", "tp"), ("hsdp4", "fsdp")],
    4: [("fsdp4", "fsdp"), ("hsdp4", "hsdp"), ("tp4", "tp"), ("fsdp2", "hsdp"), ("ddp2", "fsdp")],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("layouts")
    for world, saved in SAVED.items():
        ranks.run(world, layouts.save, saved, str(made), f"file://{made}/stores")
    return made


@pytest.mark.parametrize("world", CELLS)
def test_every_layout_comes_back_to_the_bit_in_every_other(
    folder: Path, world: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("layouts", f"{world} ranks: {CELLS[world]}")
    ranks.run(world, layouts.restore, CELLS[world], str(folder), f"file://{folder}/stores")
