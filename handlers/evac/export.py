"""`evac export`: one generation, or its weights, as a directory that others read.

Plain DCP, which stock `dcp.load` reads and this needs no torch for, or safetensors. Every byte is
compared with its checksum on the way; the directory is written aside and takes its name when it is
whole and on the disk. No more is in memory than a few chunks, or one tensor.
"""

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from evac import human
from evac.commit import GenerationStatus, State, chunk_sums, jobs, survey
from evac.commit.judge import pending_name
from evac.commit.reading import Loaded, load
from evac.errors import ConfigError, GenerationError
from evac.generation import METADATA, WEIGHTS, Generation
from evac.inspect import NEWEST, Progress, nothing_in, open_named
from evac.manifest import CHUNK, FULL, File, Manifest
from evac.side import POINTER_BYTES, pointed
from evac.store import Store

DCP, SAFETENSORS = "dcp", "safetensors"
_BUFFER = 4 * CHUNK
_SHARD = 5_000_000_000

DESCRIPTION = """\
Write a generation, or its weights alone, to a new directory.

  --format dcp           what torch.distributed.checkpoint.load reads, at any world size
  --format safetensors   the weights: what lies under the key 'model', whole tensors; needs torch

Every checksum is compared on the way. The directory appears when all of it is there.
Objects that had outgrown their places when they were saved, which stock torch would refuse, are
named where they are: that takes torch.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `evac export`."""
    parser.add_argument(
        "store",
        nargs="?",
        default=os.environ.get("EVAC_STORE"),
        metavar="STORE",
        help="a store's URL, or a folder (default: EVAC_STORE)",
    )
    parser.add_argument("--to", type=Path, required=True, help="the directory: it must not exist")
    parser.add_argument("--job", metavar="PREFIX", help="which one, as `evac ls` names it")
    parser.add_argument(
        "--generation",
        default=NEWEST,
        metavar="step-N.K",
        help="which one, as `evac ls` names it (default: the newest complete one)",
    )
    parser.add_argument("--format", choices=(DCP, SAFETENSORS), default=DCP)
    parser.add_argument(
        "--weights-only",
        action="store_true",
        help="without optimizer and the rest; then a generation of which only the weights are "
        "whole will do, too (safetensors: always)",
    )
    parser.add_argument(
        "--shard-bytes",
        type=int,
        default=_SHARD,
        help=f"safetensors: most bytes of one file (default {_SHARD:,})",
    )
    parser.add_argument(
        "--tied-once",
        action="store_true",
        help="safetensors: leave out tensors that equal another one byte for byte, and name them",
    )
    parser.add_argument("--json", action="store_true", help="for programs")


def export(args: argparse.Namespace) -> int:
    """Write the directory; 0 where it is there.

    Raises:
        ConfigError: No such store or job, a directory that exists or cannot be written, torch that
            does not.
        GenerationError: Nothing is whole, or a byte is not what was written.
        StoreError: The store cannot be read.
    """
    to: Path = args.to.absolute()
    if os.path.lexists(to):
        raise ConfigError("--to", str(to), "a directory that does not exist yet")
    if args.shard_bytes < 1:
        raise ConfigError("--shard-bytes", str(args.shard_bytes), "at least 1")
    weights = args.weights_only or args.format == SAFETENSORS
    store = open_named(args.store)
    job, status = asyncio.run(_choose(store, args.job, args.generation, weights=weights))
    try:
        made = _made(store, job, status, to, args)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError("--to", str(to), f"a place that can be written to ({reason})") from error
    generation = status.generation.directory
    if args.json:
        told = {"job": job, "generation": generation, "to": str(to), "format": args.format}
        told |= {"weights_only": weights, "nbytes": made.nbytes, "left_out": made.left_out}
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
    else:
        said = "; ".join(
            [made.what, *(f"{one} left out, {why}" for one, why in made.left_out.items())]
        )
        sys.stdout.write(f"{job}/{generation}: {said}, in {to}\n")
    return 0


@dataclass(frozen=True)
class _Made:
    """What a directory holds by now.

    Attributes:
        what: In words.
        left_out: Names that the generation has and the directory has not, and why.
    """

    nbytes: int
    what: str
    left_out: dict[str, str] = field(default_factory=dict)


def _made(
    store: Store, job: str, status: GenerationStatus, to: Path, args: argparse.Namespace
) -> _Made:
    """What was written to *to*, which is there only once all of it is."""
    weights = args.weights_only or args.format == SAFETENSORS
    to.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        if args.format == SAFETENSORS:
            made = _safetensors(store, job, status, aside, args)
        else:
            made = asyncio.run(_dcp(store, job, status, aside, weights=weights))
        aside.chmod(0o777 & ~_umask())
        for folder in (aside / WEIGHTS, aside):
            if folder.is_dir():
                _sync(folder)
        aside.rename(to)
        _sync(to.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return made


async def _choose(
    store: Store, job: str | None, wanted: str, *, weights: bool
) -> tuple[str, GenerationStatus]:
    """The generation to write, and the job whose it is."""
    prefixes = (job.strip("/"),) if job else await jobs(store)
    if not prefixes:
        raise ConfigError("STORE", store.url, f"a store to export from; {nothing_in(store)}")
    if len(prefixes) != 1:
        raise ConfigError("--job", job or "none", f"one of {', '.join(prefixes)}")
    generation = None if wanted == NEWEST else Generation.parse(wanted)
    if generation is None and wanted != NEWEST:
        raise ConfigError("--generation", wanted, "a name like step-1200.3, or newest")
    for status in await survey(store, prefixes[0]):
        whole = status.state is State.COMPLETE and (status.kind == FULL or weights)
        if generation in (None, status.generation) and whole:
            return prefixes[0], status
    reason = "none is whole; `evac ls` says why" if generation is None else "it is not whole"
    raise GenerationError(f"{prefixes[0]}/{wanted}", reason)


@dataclass(frozen=True)
class _Plain:
    """What a plain DCP directory is made of.

    Attributes:
        objects: File and offset there of the place of each object that is no tensor.
    """

    folder: str
    files: Sequence[File]
    metadata: bytes
    objects: Sequence[tuple[str, int]]


async def _dcp(
    store: Store, job: str, status: GenerationStatus, aside: Path, *, weights: bool
) -> _Made:
    plain = await _parts(store, job, status.generation, WEIGHTS if weights else FULL)
    progress = Progress(f"{job} {status.generation.directory}", sum(f.nbytes for f in plain.files))
    try:
        for one in plain.files:
            path = aside / one.name
            path.parent.mkdir(exist_ok=True)
            await _copy(store, f"{plain.folder}/{one.name}", one, path, progress)
    finally:
        progress.close()
    _write(aside / METADATA, _followed(plain, aside))
    nbytes = sum(one.nbytes for one in plain.files)
    return _Made(nbytes, f"{human.size(nbytes)} as DCP" + (", weights only" if weights else ""))


async def _parts(store: Store, job: str, generation: Generation, kind: str) -> _Plain:
    loaded = await load(store, job, generation, kind)
    manifests = loaded.manifests
    if not loaded.lacks_only_metadata or not manifests:
        raise GenerationError(loaded.folder, f"its {kind} files do not lie apart, or are not whole")
    one = next(iter(manifests.values()))
    if not one.metadata_nbytes:
        raise GenerationError(loaded.folder, "holds no checkpoint of torch")
    metadata = await store.get(_metadata_key(loaded, one.metadata_sha256))
    if hashlib.sha256(metadata).hexdigest() != one.metadata_sha256:
        raise GenerationError(loaded.folder, f"SHA-256 of {METADATA} does not match")
    files = [file for manifest in manifests.values() for file in manifest.files]
    objects = [place for manifest in manifests.values() for place in _objects(manifest)]
    return _Plain(loaded.folder, files, metadata, objects)


def _objects(manifest: Manifest) -> Iterator[tuple[str, int]]:
    files = list(manifest.files)
    ends = list(accumulate(one.nbytes for one in files))
    for item in manifest.items:
        offset = item.get("offset")
        if item.get("kind") != "bytes" or type(offset) is not int or offset < 0:
            continue
        if (at := bisect_right(ends, offset)) < len(files):
            yield files[at].name, offset - ends[at] + files[at].nbytes


def _followed(plain: _Plain, aside: Path) -> bytes:
    """Its `.metadata`, which names what has outgrown its place where it is."""
    moved: dict[tuple[str, int], tuple[int, int]] = {}
    for name, offset in plain.objects:
        with (aside / name).open("rb") as file:
            file.seek(offset)
            if where := pointed(file.read(POINTER_BYTES)):
                moved[name, offset] = where
    if not moved:
        return plain.metadata
    try:
        from evac.torch.sides import repointed
    except ModuleNotFoundError as error:
        what = f"dcp without {error.name}, of objects that have outgrown their places"
        raise ConfigError("--format", what, "pip install 'evac[torch]'") from error
    return repointed(plain.metadata, moved, where=plain.folder)


def _metadata_key(loaded: Loaded, sha256: str) -> str:
    """Of weights in a whole generation it may lie there under its other name alone."""
    name = METADATA if METADATA in loaded.files else pending_name(sha256)
    return f"{loaded.folder}/{name}"


async def _copy(
    store: Store, key: str, one: File, path: Path, progress: Callable[[int], None]
) -> None:
    buffer = bytearray(min(_BUFFER, one.nbytes))
    with path.open("wb") as file:
        for start in range(0, one.nbytes, _BUFFER):
            with memoryview(buffer)[: min(_BUFFER, one.nbytes - start)] as into:
                got = await store.read(key, start, into)
                if got < into.nbytes:
                    raise GenerationError(key, f"ends at byte {start + got} of {one.nbytes}")
                first = start // CHUNK
                sums = chunk_sums(into)
                if sums != one.crc32c[first : first + len(sums)]:
                    raise GenerationError(key, f"CRC-32C differs from byte {start} on")
                file.write(into)
                progress(into.nbytes)
        file.flush()
        os.fsync(file.fileno())


def _safetensors(
    store: Store,
    job: str,
    status: GenerationStatus,
    aside: Path,
    args: argparse.Namespace,
) -> _Made:
    try:
        from evac.torch.reader_bodies import Contents, look
        from evac.torch.weights_file import Weights
    except ModuleNotFoundError as error:
        cure = "pip install 'evac[torch]', or --format dcp"
        raise ConfigError("--format", f"safetensors without {error.name}", cure) from error
    contents = look(store.url, job, status.generation, status.kind or FULL)
    if not isinstance(contents, Contents):
        raise GenerationError(contents[0].key, contents[0].reason)
    weights = Weights(str(status.generation), contents)
    progress = Progress(f"{job} {status.generation.directory}", weights.nbytes)
    try:
        tied = weights.write(aside, shard=args.shard_bytes, once=args.tied_once, progress=progress)
    finally:
        progress.close()
    left_out = {one: f"tied to {other}" for one, other in tied.items()}
    left_out |= dict.fromkeys(weights.left_out, "no tensor")
    what = f"{human.size(weights.nbytes)} of weights as safetensors"
    return _Made(weights.nbytes, what, left_out)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
