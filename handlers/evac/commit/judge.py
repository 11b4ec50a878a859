"""What a listing and its manifests amount to: is this generation whole?

A generation's weights have manifests of their own, in a folder of their own, and are judged like a
generation by themselves; nothing there says anything of the whole.

Pure: names, sizes and decoded manifests in, a verdict out. Nothing is believed that is not
named by manifests which all agree, so files of anybody else never help to make a
generation whole, and never stand in its way.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from evac.errors import GenerationError
from evac.generation import METADATA, WEIGHTS, Generation
from evac.manifest import FULL, Manifest, is_file_name
from evac.store import Entry

_MANIFEST = re.compile(r"__(0|[1-9][0-9]{0,6})\.manifest\.json")
# Says where manifests of one generation may not differ, and in which order to complain.
_SHARED = (
    "job", "run", "world", "layout", "metadata_sha256", "metadata_nbytes",
)  # fmt: skip
# Eighteen digits, as in a generation's name.
CLAIM = re.compile(r"incarnation-(0|[1-9][0-9]{0,17})\.json")
_WEIGHTS = f"{WEIGHTS}/"
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
        kind: ``full``, or ``weights`` for those alone; "" where no manifest says.
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


def waits_for_metadata(files: Mapping[str, int]) -> bool:
    """Whether a generation, or its weights, may be FINISHABLE: by the names in its folder alone."""
    return any(
        METADATA not in some and any(_PENDING.fullmatch(name) for name in some)
        for some in (files, of_weights(files))
    )


def manifest_rank(name: str) -> int | None:
    """The rank whose manifest a file is by its name; None where it is none."""
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def is_ours(name: str) -> bool:
    """Whether a file in a generation's folder has a name that we give; ``weights/x`` for its weights'."""
    plain = name.removeprefix(_WEIGHTS)
    return (
        plain == METADATA
        or any(pattern.fullmatch(plain) for pattern in (_MANIFEST, _PENDING))
        or is_file_name(name)
    )  # fmt: skip


def of_weights(files: Mapping[str, int]) -> dict[str, int]:
    """Of the files in a generation's folder those in its weights' folder, by their names there."""
    return {
        name.removeprefix(_WEIGHTS): nbytes
        for name, nbytes in files.items()
        if name.startswith(_WEIGHTS)
    }


def by_generation(prefix: str, entries: Iterable[Entry]) -> dict[Generation, dict[str, int]]:
    """File names and sizes per generation of one job, newest first; other files left out.

    Names in a generation's folder, and ``weights/<name>`` for those in its weights' folder.
    """
    found: dict[Generation, dict[str, int]] = {}
    for entry in entries:
        folder, _, name = entry.key.removeprefix(f"{prefix}/").partition("/")
        generation = Generation.parse(folder)
        if generation is not None and name and "/" not in name.removeprefix(_WEIGHTS):
            found.setdefault(generation, {})[name] = entry.nbytes
    return dict(sorted(found.items(), reverse=True))


def judge(
    generation: Generation,
    files: Mapping[str, int],
    manifests: Mapping[int, Manifest | GenerationError],
    kind: str = FULL,
) -> GenerationStatus:
    """Decide what a generation, or its weights alone, amounts to.

    Args:
        files: Names and sizes of what lies in its folder, or in its weights' folder.
        manifests: By the rank in the file's name, what decoding it gave.
        kind: ``full``, or ``weights`` to judge these.
    """
    sound = {rank: m for rank, m in sorted(manifests.items()) if isinstance(m, Manifest)}
    state, reason = _judge(generation, files, sound, manifests, kind)
    first = next(iter(sound.values()), None)
    return GenerationStatus(
        generation=generation,
        state=state,
        kind=kind if first or kind != FULL else "",
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
    kind: str,
) -> tuple[State, str]:
    broken = [(r, m.reason) for r, m in sorted(manifests.items()) if isinstance(m, GenerationError)]
    if not sound:
        return State.TORN, (
            f"rank {broken[0][0]}: {broken[0][1]}"
            if broken
            else "no manifest: still in flight, or its writer died"
        )
    mixed = _mixed(generation, sound, kind)
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
        for one in manifest.files:
            nbytes = files.get(one.name)
            if nbytes is None:
                return State.TORN, f"a file of rank {rank} is missing: {one.name}"
            if nbytes != one.nbytes:
                return State.TORN, f"{one.name} of rank {rank} has {nbytes} of {one.nbytes} bytes"
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


def _mixed(generation: Generation, sound: Mapping[int, Manifest], kind: str) -> str:
    """Why these manifests cannot be parts of one generation; "" where they can."""
    first_rank, first = next(iter(sound.items()))
    named: dict[str, int] = {}
    for rank, manifest in sound.items():
        if manifest.rank != rank:
            return f"manifest of rank {manifest.rank} lies under the name of rank {rank}"
        if manifest.generation != generation:
            return f"manifest of rank {rank} belongs to {manifest.generation}"
        if manifest.kind != kind:
            return f"manifest of rank {rank} is of kind {manifest.kind}, where {kind} belongs"
        for name in _SHARED:
            ours, theirs = getattr(first, name), getattr(manifest, name)
            if ours != theirs:
                return f"{name} differs: {ours!r} on rank {first_rank}, {theirs!r} on rank {rank}"
        for one in manifest.files:
            if one.name in named:
                return f"ranks {named[one.name]} and {rank} name one file: {one.name}"
            named[one.name] = rank
    return ""


def _ranks(ranks: Iterable[int], count: int) -> str:
    """``rank 3`` or ``ranks 0, 1, 2 and 61 more``."""
    shown = [str(rank) for rank, _ in zip(ranks, range(3), strict=False)]
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return f"rank{'s' if count > 1 else ''} {', '.join(shown)}{more}"


def expendable(statuses: Sequence[GenerationStatus], *, keep: int) -> tuple[Generation, ...]:
    """Which generations retention may delete, oldest first.

    The *keep* newest complete ones stay; of what is older than the newest of them, complete or
    torn, nothing else is needed. Whatever is newer may still be in flight and stays; but of what an
    earlier start of the job has left there, the *keep* newest torn ones and the *keep* newest
    that have their weights are enough. What lacks only its last file stays.

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
    kept = set(whole[:keep])
    old = {
        s.generation
        for s in statuses
        if whole and s.generation < whole[0] and s.generation not in kept
    }
    return tuple(sorted(old | _left_behind(statuses, whole[:1], keep)))


def _left_behind(
    statuses: Sequence[GenerationStatus], whole: Sequence[Generation], keep: int
) -> set[Generation]:
    """Newer than all that is whole, and of an earlier start than the last one: in flight no more."""
    newer = [s for s in statuses if not whole or s.generation > whole[0]]
    last = max((s.generation.incarnation for s in newer), default=0)
    weights = {s.generation for s in newer if s.state is State.COMPLETE}
    torn = {s.generation for s in newer if s.state in (State.TORN, State.MIXED)} - weights
    stays = {s.generation for s in newer if s.state is State.FINISHABLE}
    for some in (weights, torn):
        stays |= set(sorted(some, reverse=True)[:keep])
    return {one for one in weights | torn if one.incarnation < last} - stays
