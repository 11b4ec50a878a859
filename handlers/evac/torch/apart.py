"""What ranks hold under one name and not as one value: found at planning, kept apart for each of them.

DCP takes what has one name for one thing, and keeps what one rank holds of it. That is right for a
parameter that training keeps equal on all ranks, and wrong for the running statistics of a BatchNorm
under DDP, for experts as plain tensors, for the parameter groups of a pipeline's stages. So each
rank but the first that holds such a value stages its own under another name, ``evac.rank<r>.own.`` and
the plain one; the first one's has the plain name, under which anybody finds it.

Which those are is told in two ways. What a model holds beside its parameters is each rank's own by kind: it
need not differ yet (statistics are equal before the first batch) and will, with no collective in which
to notice. Everything else is equal, and stays so, where it is equal to the last bit at planning, after
a step; where it is not, a parameter goes with its moments and its moments with it. A DTensor says itself
who holds what; only where meshes apart have tensors of one name that differ is there more to it, and
then one mesh's is kept, with a warning.
"""

import hashlib
import pickle
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, TypeAlias

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from evac.generation import WEIGHTS
from evac.torch import rank_state
from evac.torch.state import MODEL, OPTIMIZER

# What goes together -> key -> fingerprint; None where the kind alone makes it a rank's own.
Held: TypeAlias = Mapping[str, Mapping[str, int | None]]

_OWN = re.compile(r"evac\.rank\d+\.own")
_WRITER = re.compile(rf"(?:{WEIGHTS}/)?__(\d+)_\d+\.distcp")
_CHUNK = 1 << 17
_MASK = (1 << 64) - 1
# Of Knuth's generator for 64 bits, MMIX.
_ODD = 6364136223846793005


def name(rank: int) -> str:
    """Under which a rank's own values lie, by their plain names."""
    return f"{rank_state.name(rank)}.own"


def plain(path: Sequence[Any]) -> str:
    """The plain name of what lies at *path* of a checkpoint; "" where that is no rank's own."""
    return path[1] if len(path) == 2 and _OWN.fullmatch(str(path[0])) else ""


def of_model(path: Sequence[Any]) -> bool:
    """Whether a model holds what lies at *path*, be it all ranks' or one's own."""
    return path[0] == MODEL or plain(path).startswith(f"{MODEL}.")


def held(
    flat: Mapping[str, Any], paths: Mapping[str, tuple[Any, ...]], own: Set[tuple[str, ...]]
) -> Held:
    """What this rank holds whole, to be compared with the others'.

    Args:
        flat: By DCP's keys.
        paths: Where each was before.
        own: Beginnings of paths: each rank's own by kind.
    """
    found: dict[str, dict[str, int | None]] = {}
    for key, value in flat.items():
        path = paths[key]
        if isinstance(value, DTensor):
            continue
        if any(path[:length] in own for length in range(1, len(path) + 1)):
            found.setdefault(key, {})[key] = None
        else:
            found.setdefault(_together(key, path), {})[key] = fingerprint(value)
    return found


def shards(flat: Mapping[str, Any], world: int) -> dict[str, int]:
    """What this rank holds of DTensors that are spread over a part of the *world* only.

    DCP tells parts by name and place in the whole; so two meshes with one name are one to it.
    """
    found: dict[str, int] = {}
    for key, value in flat.items():
        if not isinstance(value, DTensor):
            continue
        mesh = value.device_mesh
        if mesh.size() < world and mesh.get_coordinate() is not None:
            _, at = compute_local_shape_and_global_offset(value.shape, mesh, value.placements)
            found[f"{key} at {tuple(at)}"] = fingerprint(value.to_local())
    return found


def unlike(everyone: Sequence[Mapping[str, int]]) -> tuple[str, ...]:
    """Parts of DTensors that are not the same wherever they are held."""
    first: dict[str, int] = {}
    return tuple(
        sorted({k for one in everyone for k, v in one.items() if first.setdefault(k, v) != v})
    )


def _together(key: str, path: Sequence[Any]) -> str:
    if path[0] == MODEL:
        return str(path[1])
    if path[0] == OPTIMIZER and len(path) > 2 and path[1] == "state":
        return str(path[2])
    return key


def decide(rank: int, everyone: Sequence[Held]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What *rank* stages under a name of its own.

    Returns:
        That name by the plain one; and what of all differs, without what is apart by kind.
    """
    first: dict[str, tuple[int, int | None]] = {}
    apart: set[str] = set()
    differing: set[str] = set()
    for number, holding in enumerate(everyone):
        for group, keys in holding.items():
            for key, value in keys.items():
                home, theirs = first.setdefault(key, (number, value))
                if home == number:
                    continue
                if value is None or theirs is None:
                    apart.add(group)
                elif value != theirs:
                    apart.add(group)
                    differing.add(key)
    mine = everyone[rank]
    names = {
        key: f"{name(rank)}.{key}"
        for group in sorted(apart)
        for key in mine.get(group, ())
        if first[key][0] != rank
    }
    return names, tuple(sorted(differing))


def others(metadata: Metadata, rank: int) -> frozenset[str]:
    """Plain names under which another rank's moments lie, of a parameter that is apart: *rank* had none.

    An expert that had its first samples on one rank has moments there alone. That rank was the
    first to hold them, so they have the plain name; who wrote them is told by their file.
    """
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    apart = {_parameter(paths[key]) for path in paths.values() if (key := plain(path))} - {""}
    if not apart:
        return frozenset()
    mine = name(rank)
    wrote = {
        index.fqn: _WRITER.fullmatch(info.relative_path)
        for index, info in (metadata.storage_data or {}).items()
    }
    return frozenset(
        key
        for key, path in paths.items()
        if path[0] == OPTIMIZER
        and _parameter(path) in apart
        and f"{mine}.{key}" not in paths
        and (found := wrote.get(key)) is not None
        and int(found[1]) != rank
    )


def _parameter(path: Sequence[Any]) -> str:
    """What lies at *path* is, or belongs to; "" where that is no parameter."""
    if path[0] == OPTIMIZER and path[1] != "state":
        return ""
    return _together("", path)


def fingerprint(value: Any) -> int:
    """Equal for equal values, bit for bit; for others equal once in 2^64. On the value's device."""
    if not isinstance(value, torch.Tensor):
        return _number(pickle.dumps(value))
    what = f"{value.dtype} {tuple(value.shape)} {value.layout}".encode()
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        return _number(what)  # refused by name where it is laid out
    total = _number(what)
    # Not as the subclass that it may be: only its bytes count.
    whole = value.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    data = whole.reshape(-1).view(torch.uint8)
    words = torch.empty(min(_CHUNK, -(-data.numel() // 8)), dtype=torch.int64, device=data.device)
    places = torch.arange(1, words.numel() + 1, device=data.device) * _ODD
    for start in range(0, data.numel(), 8 * _CHUNK):
        part = data[start : start + 8 * _CHUNK]
        words.zero_()
        words.view(torch.uint8)[: part.numel()].copy_(part)
        # A sum modulo 2^64 is the same in any order; what is summed has each bit spread over all.
        words ^= places
        for _ in range(2):
            words *= _ODD
            words ^= words >> 31
        total = (total * _ODD + int(words.sum().item())) & _MASK
    return total


def _number(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") & _MASK
