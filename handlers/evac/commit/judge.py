"""What a listing and its manifests amount to: is this generation whole?

Pure: names, sizes and decoded manifests in, a verdict out. Nothing is believed that is not
named by manifests which all agree, so files of anybody else never help to make a
generation whole, and never stand in its way.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from evac.errors import GenerationError
from evac.generation import BODY, METADATA, Generation
from evac.manifest import Manifest
from evac.store import Entry

_MANIFEST = re.compile(r"__(0|[1-9][0-9]{0,6})\.manifest\.json")
# Says where manifests of one generation may not differ, and in which order to complain.
_SHARED = (
    "job", "run", "world", "layout", "metadata_sha256", "metadata_nbytes", "kind",
)  # fmt: skip
# Eighteen digits, as in a generation's name.
CLAIM = re.compile(r"incarnation-(0|[1-9][0-9]{0,17})\.json")
_PENDING = re.compile(r"\.metadata-[0-9a-f]{64}\.pending")


class State(StrEnum):
    """What can be done with a generation in a store."""

    COMPLETE = "complete"
    FINISHABLE = "finishable"
    TORN = "torn"
    MIXED = "mixed"


@dataclass(frozen=True)
class GenerationStatus:
    """One generation as it lies in a store.

    Attributes:
        state: COMPLETE can be restored; FINISHABLE lacks only `.metadata`, whose bytes are
            there; TORN lacks something: cut off, or still in flight; MIXED holds parts that don't belong together.
        kind: ``full`` or ``weights``; "" where no manifest says.
        world: Number of ranks; 0 where no manifest says.
        ranks: Those whose manifest is there and sound.
        nbytes: Of all files of this generation that are ours.
        reason: One line for a person; "" where COMPLETE.
    """

    generation: Generation
    state: State
    kind: str
    world: int
    ranks: tuple[int, ...]
    nbytes: int
    reason: str


def pending_name(sha256: str) -> str:
    """Where `.metadata`'s bytes wait for the last manifest; by content, so nobody's clash."""
    return f"{METADATA}-{sha256}.pending"


def manifest_rank(name: str) -> int | None:
    """The rank whose manifest a file is by its name; None where it is none."""
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def is_ours(name: str) -> bool:
    """Whether a file in a generation's folder has a name that we give."""
    return (
        name == METADATA
        or any(pattern.fullmatch(name) for pattern in (_MANIFEST, _PENDING, BODY))
    )  # fmt: skip


def by_generation(prefix: str, entries: Iterable[Entry]) -> dict[Generation, dict[str, int]]:
    """File names and sizes per generation of one job, newest first; other files left out."""
    found: dict[Generation, dict[str, int]] = {}
    for entry in entries:
        folder, _, name = entry.key.removeprefix(f"{prefix}/").partition("/")
        generation = Generation.parse(folder)
        if generation is not None and name and "/" not in name:
            found.setdefault(generation, {})[name] = entry.nbytes
    return dict(sorted(found.items(), reverse=True))


def judge(
    generation: Generation,
    files: Mapping[str, int],
    manifests: Mapping[int, Manifest | GenerationError],
) -> GenerationStatus:
    """Decide what a generation is.

    Args:
        files: Names and sizes of what lies in its folder.
        manifests: By the rank in the file's name, what decoding it gave.
    """
    sound = {rank: m for rank, m in sorted(manifests.items()) if isinstance(m, Manifest)}
    state, reason = _judge(generation, files, sound, manifests)
    first = next(iter(sound.values()), None)
    return GenerationStatus(
        generation=generation,
        state=state,
        kind=first.kind if first else "",
        world=first.world if first else 0,
        ranks=tuple(sound),
        nbytes=sum(nbytes for name, nbytes in files.items() if is_ours(name)),
        reason=reason,
    )


def _judge(
    generation: Generation,
    files: Mapping[str, int],
    sound: Mapping[int, Manifest],
    manifests: Mapping[int, Manifest | GenerationError],
) -> tuple[State, str]:
    broken = [(r, m.reason) for r, m in sorted(manifests.items()) if isinstance(m, GenerationError)]
    if not sound:
        return State.TORN, (
            f"rank {broken[0][0]}: {broken[0][1]}"
            if broken
            else "no manifest: still in flight, or its writer died"
        )
    mixed = _mixed(generation, sound)
    if mixed:
        return State.MIXED, mixed
    world = next(iter(sound.values())).world
    for rank, reason in broken:
        if rank < world:
            return State.TORN, f"rank {rank}: {reason}"
    missing = world - len(sound)
    if missing:
        absent = (rank for rank in range(world) if rank not in sound)
        return State.TORN, f"no manifest of {_ranks(absent, missing)}"
    for rank, manifest in sound.items():
        nbytes = files.get(manifest.body)
        if nbytes is None:
            return State.TORN, f"body of rank {rank} is missing: {manifest.body}"
        if nbytes != manifest.nbytes:
            return State.TORN, f"body of rank {rank} has {nbytes} of {manifest.nbytes} bytes"
    return _metadata(files, sound[0])


def _metadata(files: Mapping[str, int], manifest: Manifest) -> tuple[State, str]:
    if manifest.metadata_nbytes == 0:
        return State.COMPLETE, ""
    nbytes = files.get(METADATA)
    if nbytes == manifest.metadata_nbytes:
        return State.COMPLETE, ""
    if nbytes is not None:
        wrong = f"{METADATA} has {nbytes} bytes, expected {manifest.metadata_nbytes}"
        return State.TORN, wrong
    if files.get(pending_name(manifest.metadata_sha256)) == manifest.metadata_nbytes:
        return State.FINISHABLE, f"lacks only {METADATA}: `evac verify --finish` writes it"
    return State.TORN, f"lacks only {METADATA}, and nobody has left its bytes here"


def _mixed(generation: Generation, sound: Mapping[int, Manifest]) -> str:
    """Why these manifests cannot be parts of one generation; "" where they can."""
    first_rank, first = next(iter(sound.items()))
    bodies: dict[str, int] = {}
    for rank, manifest in sound.items():
        if manifest.rank != rank:
            return f"manifest of rank {manifest.rank} lies under the name of rank {rank}"
        if manifest.generation != generation:
            return f"manifest of rank {rank} belongs to {manifest.generation}"
        for name in _SHARED:
            ours, theirs = getattr(first, name), getattr(manifest, name)
            if ours != theirs:
                return f"{name} differs: {ours!r} on rank {first_rank}, {theirs!r} on rank {rank}"
        if manifest.body in bodies:
            return f"ranks {bodies[manifest.body]} and {rank} name one body: {manifest.body}"
        bodies[manifest.body] = rank
    return ""


def _ranks(ranks: Iterable[int], count: int) -> str:
    """``rank 3`` or ``ranks 0, 1, 2 and 61 more``."""
    shown = [str(rank) for rank, _ in zip(ranks, range(3), strict=False)]
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return f"rank{'s' if count > 1 else ''} {', '.join(shown)}{more}"


def expendable(statuses: Sequence[GenerationStatus], *, keep: int) -> tuple[Generation, ...]:
    """Which generations retention may delete, oldest first.

    Whatever is newer than the newest complete one may still be in flight and stays; the
    *keep* newest complete ones stay; of the rest, complete or torn, nothing is needed.
    Weights without their optimizer count as no complete generation.

    Args:
        keep: At least 1.

    Raises:
        ValueError: *keep* would delete the newest complete one.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}, expected at least 1")
    whole = sorted(
        (s.generation for s in statuses if s.state is State.COMPLETE and s.kind == "full"),
        reverse=True,
    )
    if not whole:
        return ()
    kept = set(whole[:keep])
    old = (s.generation for s in statuses if s.generation < whole[0] and s.generation not in kept)
    return tuple(sorted(old))
