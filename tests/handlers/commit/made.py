"""Generations to try things on: their files as bytes, or committed to a store."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evac.commit import chunk_sums, finish, put_body, put_manifest
from evac.errors import GenerationError
from evac.generation import METADATA, Generation, manifest_name
from evac.manifest import File, Manifest
from evac.store import Store

PREFIX = "user/job"
METADATA_BYTES = b"the plan of a whole checkpoint"
WEIGHTS_METADATA_BYTES = b"the plan of its weights"


def body_of(rank: int, nbytes: int = 1000) -> bytes:
    return (f"rank {rank} ".encode() * nbytes)[:nbytes]


def manifest(
    generation: Generation, rank: int, world: int, *, data: bytes | None = None, **other: Any
) -> Manifest:
    data = body_of(rank) if data is None else data
    kind = "weights" if other.get("kind") == "weights" else "rest"
    made = Manifest(
        job="job",
        run="run-1",
        generation=generation,
        rank=rank,
        world=world,
        layout="layout-1",
        files=(File(f"__{rank}_0.distcp", len(data), chunk_sums(memoryview(data)), kind),),
        metadata_nbytes=len(METADATA_BYTES),
        metadata_sha256=hashlib.sha256(METADATA_BYTES).hexdigest(),
    )
    return replace(made, **other)


def without_metadata(made: Manifest) -> Manifest:
    return replace(made, metadata_nbytes=0, metadata_sha256="")


def whole(generation: Generation, world: int, **other: Any) -> dict[str, bytes]:
    """All files of a complete generation, by name."""
    files = {METADATA: METADATA_BYTES}
    for rank in range(world):
        made = manifest(generation, rank, world, **other)
        files[made.files[0].name] = body_of(rank)
        files[manifest_name(rank)] = made.encode()
    return files


def parted(generation: Generation, rank: int, world: int, **other: Any) -> Manifest:
    """The manifest of a rank whose weights lie apart; the last rank has none."""
    files = [File(f"__{rank}_0.distcp", 1000, chunk_sums(memoryview(body_of(rank))))]
    if rank < world - 1 or world == 1:
        data = weights_of(rank)
        name = f"weights/__{rank}_0.distcp"
        files.insert(0, File(name, len(data), chunk_sums(memoryview(data)), "weights"))
    items = ({"name": "w", "offset": 0, "nbytes": 10}, {"name": "m", "offset": 9, "nbytes": 990})
    return manifest(generation, rank, world, files=tuple(files), items=items, **other)


def weights_of(rank: int) -> bytes:
    return f"weights of rank {rank}".encode()


def whole_parted(generation: Generation, world: int, **other: Any) -> dict[str, bytes]:
    """All files of a complete generation whose weights lie apart, and are complete by themselves."""
    files = {METADATA: METADATA_BYTES, f"weights/{METADATA}": WEIGHTS_METADATA_BYTES}
    for rank in range(world):
        made = parted(generation, rank, world, **other)
        for one in made.files:
            files[one.name] = weights_of(rank) if one.kind == "weights" else body_of(rank)
        files[manifest_name(rank)] = made.encode()
        alone = made.of_weights(WEIGHTS_METADATA_BYTES).encode()
        files[f"weights/{manifest_name(rank)}"] = alone
    return files


def looked_at(
    files: Mapping[str, bytes],
) -> tuple[dict[str, int], dict[int, Manifest | GenerationError]]:
    """What a listing and a look into the manifests give."""
    manifests: dict[int, Manifest | GenerationError] = {}
    for name, data in files.items():
        rank = name.removeprefix("__").removesuffix(".manifest.json")
        if name.endswith(".manifest.json") and rank.isdecimal():
            try:
                manifests[int(rank)] = Manifest.decode(data, where=name)
            except GenerationError as error:
                manifests[int(rank)] = error
    return {name: len(data) for name, data in files.items()}, manifests


async def commit(
    store: Store, generation: Generation, world: int = 2, *, prefix: str = PREFIX, **other: Any
) -> None:
    """Put a complete generation into a store."""
    for rank in range(world):
        made = manifest(generation, rank, world, **other)
        name = made.files[0].name if made.kind == "full" else f"weights/{made.files[0].name}"
        await put_body(store, prefix, generation, name, memoryview(body_of(rank)), rank=rank)
        await put_manifest(store, prefix, made, metadata=METADATA_BYTES)
    assert await finish(store, prefix, generation, kind=made.kind)
