"""Generations to try things on: their files as bytes, or committed to a store."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evac.commit import chunk_sums, finish, put_body, put_manifest
from evac.errors import GenerationError
from evac.generation import METADATA, Generation, manifest_name
from evac.manifest import Manifest
from evac.store import Store

PREFIX = "user/job"
METADATA_BYTES = b"the plan of a whole checkpoint"


def body_of(rank: int, nbytes: int = 1000) -> bytes:
    return (f"rank {rank} ".encode() * nbytes)[:nbytes]


def manifest(
    generation: Generation, rank: int, world: int, *, data: bytes | None = None, **other: Any
) -> Manifest:
    data = body_of(rank) if data is None else data
    made = Manifest(
        job="job",
        run="run-1",
        generation=generation,
        rank=rank,
        world=world,
        layout="layout-1",
        body=f"__{rank}_0.distcp",
        nbytes=len(data),
        crc32c=chunk_sums(memoryview(data)),
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
        files[made.body] = body_of(rank)
        files[manifest_name(rank)] = made.encode()
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
        await put_body(store, prefix, generation, made.body, memoryview(body_of(rank)), rank=rank)
        await put_manifest(store, prefix, made, metadata=METADATA_BYTES)
    assert await finish(store, prefix, generation)
