"""`evac ls` and `evac verify`: what lies in a store, and whether it can be trusted.

Both need no daemon, no torch and none of the job's code. Exit codes: 0 what was asked for is
whole; 1 something is torn, corrupt or missing; 2 (by exception) wrong usage or no such store.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from evac import human
from evac.commit import GenerationStatus, Problem, State, finish_all, jobs, survey
from evac.commit import verify as verify_bytes
from evac.errors import ConfigError, GenerationError
from evac.generation import WEIGHTS, Generation
from evac.manifest import FULL
from evac.store import Store, open_store
from evac.store.location import is_of_job

NEWEST = "newest"
_ONLY = "weights only"


def add_ls_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `evac ls`."""
    _add_common(parser)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `evac verify`."""
    _add_common(parser)
    parser.add_argument(
        "--generation",
        default=NEWEST,
        metavar="step-N.K",
        help="which one, as `evac ls` names it (default: the newest complete one)",
    )
    parser.add_argument(
        "--finish",
        action="store_true",
        help="first complete what lacks only its last file, because its writer was killed",
    )


def ls(args: argparse.Namespace) -> int:
    """List every generation; 1 where a job has none that is complete, or nothing is there.

    Raises:
        ConfigError: No store is named, or none of this kind is known, or its folder is missing.
        StoreError: It cannot be read.
    """
    store = open_named(args.store)
    found = asyncio.run(_survey(store, args.job))
    folder = unquote(store.url.removeprefix("file://"))
    if store.url.startswith("file://") and not os.path.isdir(folder):
        raise ConfigError("STORE", "store", f"a folder that is there (no folder: {folder})")
    if args.json:
        listed = [{"job": job, "generations": [*map(_plain, s)]} for job, s in found.items()]
        _write(json.dumps({"store": store.url, "jobs": listed}, indent=1))
    elif not any(found.values()):
        _write(nothing_in(store, args.job))
    else:
        _write(_listing(found))
    whole = [any(map(_restorable, statuses)) for statuses in found.values()]
    # A mistyped prefix must not look like a store in which all is well.
    return 0 if whole and all(whole) else 1


def verify(args: argparse.Namespace) -> int:
    """Read bodies back and check every checksum; 1 where anything is wrong.

    Raises:
        ConfigError: No store is named, none of this kind is known, or the generation's name is none.
        StoreError: It cannot be read.
    """
    store = open_named(args.store)
    wanted = None
    if args.generation != NEWEST:
        wanted = Generation.parse(args.generation)
        if wanted is None:
            raise ConfigError("--generation", args.generation, "a name like step-1200.3, or newest")
    verdicts = asyncio.run(_verify(store, args.job, wanted, finish=args.finish))
    if args.json:
        _write(json.dumps({"store": store.url, "jobs": [*map(_plain_verdict, verdicts)]}, indent=1))
    elif not verdicts:
        _write(nothing_in(store))
    else:
        _write("\n".join(map(_told, verdicts)))
    return 0 if verdicts and all(verdict.ok for verdict in verdicts) else 1


@dataclass(frozen=True)
class Verdict:
    """What became of one job.

    Attributes:
        status: Of the generation that was read; None where there is none such.
        finished: Generations that were completed first.
        passed_over: Newer ones that are not whole.
    """

    job: str
    status: GenerationStatus | None
    problems: tuple[Problem, ...]
    finished: tuple[Generation, ...]
    passed_over: tuple[GenerationStatus, ...]

    @property
    def ok(self) -> bool:
        """Whether there is one, and all of it is right."""
        return self.status is not None and not self.problems


class Progress:
    """One line that is rewritten while bytes are read; nothing where nobody watches."""

    def __init__(self, what: str, nbytes: int) -> None:
        self._what = what
        self._nbytes = nbytes
        self._done = 0
        self._shown = -1
        self._on = sys.stderr.isatty()

    def __call__(self, nbytes: int) -> None:
        """Count further bytes."""
        self._done += nbytes
        percent = min(100, 100 * self._done // max(1, self._nbytes))
        if self._on and percent != self._shown:
            self._shown = percent
            amount = f"{human.size(self._done)} of {human.size(self._nbytes)}"
            sys.stderr.write(f"\r\x1b[K{self._what}  {amount}  {percent} %")
            sys.stderr.flush()

    def close(self) -> None:
        """Take the line away."""
        if self._on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "store",
        nargs="?",
        default=os.environ.get("EVAC_STORE"),
        metavar="STORE",
        help="file:///folder or the folder itself, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
        "evac://host:port or evac://job (default: EVAC_STORE)",
    )
    parser.add_argument("--job", metavar="PREFIX", help="only this one, as `evac ls` names it")
    parser.add_argument("--json", action="store_true", help="for programs")


def open_named(store: str | None) -> Store:
    """The store that a person named: a URL, or a folder.

    Raises:
        ConfigError: None was, or none of this kind is known, or nobody says whose memory it is.
    """
    if not store:
        raise ConfigError("STORE", "store", "a folder or URL here, or in EVAC_STORE")
    if is_of_job(store) and not os.environ.get("EVAC_PEERS", "").strip():
        raise ConfigError("EVAC_PEERS", store, "the job's other nodes: host:port,host:port")
    if "://" in store:
        return open_store(store)
    return open_store(f"file://{os.path.abspath(store)}")


def nothing_in(store: Store, job: str | None = None) -> str:
    """That no generations were found, and which folder this user may not look into."""
    said = f"no generations in {store.url}" + (f" under {job}" if job else "")
    if not store.url.startswith("file://"):
        return said
    root = Path(unquote(store.url.removeprefix("file://")))
    # The owners' folders, and their jobs': what lies below has their rights.
    for one in (*root.glob("*"), *root.glob("*/*")):
        if os.path.isdir(one) and not os.access(one, os.R_OK | os.X_OK):
            return f"{said} that this user may read: {one} is closed to it"
    return said


async def _survey(store: Store, job: str | None) -> dict[str, Sequence[GenerationStatus]]:
    prefixes = (job.strip("/"),) if job else await jobs(store)
    return {prefix: await survey(store, prefix) for prefix in prefixes}


async def _verify(
    store: Store, job: str | None, wanted: Generation | None, *, finish: bool
) -> list[Verdict]:
    prefixes = (job.strip("/"),) if job else await jobs(store)
    if wanted is not None and len(prefixes) > 1:
        raise ConfigError("--job", "job", f"one of {', '.join(prefixes)}")
    return [await _verify_job(store, prefix, wanted, finish=finish) for prefix in prefixes]


async def _verify_job(
    store: Store, job: str, wanted: Generation | None, *, finish: bool
) -> Verdict:
    problems: list[Problem] = []
    finished: tuple[Generation, ...] = ()
    if finish:
        try:
            finished = await finish_all(store, job)
        except GenerationError as error:
            problems.append(Problem(error.generation, error.reason))
    statuses = await survey(store, job)
    if wanted is None:
        chosen = next(filter(_restorable, statuses), None)
    else:
        these = [status for status in statuses if status.generation == wanted]
        # The whole one before its weights, unless nothing but these is whole.
        chosen = next((s for s in these if s.state is State.COMPLETE), next(iter(these), None))
    newer = tuple(
        s
        for s in statuses
        if wanted is None and (chosen is None or s.generation > chosen.generation)
    )
    if chosen is not None:
        progress = Progress(f"{job} {chosen.generation.directory}", chosen.nbytes)
        try:
            kind = chosen.kind or FULL
            problems += await verify_bytes(
                store, job, chosen.generation, kind=kind, progress=progress
            )
        finally:
            progress.close()
    return Verdict(job, chosen, tuple(problems), finished, newer)


def _restorable(status: GenerationStatus) -> bool:
    return status.state is State.COMPLETE and status.kind == FULL


def _listing(found: Mapping[str, Sequence[GenerationStatus]]) -> str:
    rows = [("JOB", "GENERATION", "STATE", "RANKS", "SIZE", "")]
    for job, statuses in found.items():
        for status in statuses:
            ranks = f"{len(status.ranks)}/{status.world or '?'}"
            note = _ONLY if status.kind == WEIGHTS else ""
            note = "; ".join(filter(None, (status.reason, note)))
            name = status.generation.directory
            rows.append((job, name, status.state.value, ranks, human.size(status.nbytes), note))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    # Words to the left, numbers to the right.
    lines = (
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        + f"  {row[5]}"
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _told(verdict: Verdict) -> str:
    lines = [f"{verdict.job}: finished {g.directory}" for g in verdict.finished]
    lines += [
        f"{verdict.job}: passed over {s.generation.directory}: {s.state.value}"
        + (f": {s.reason}" if s.reason else "")
        + (f", {_ONLY}" if s.kind == WEIGHTS else "")
        for s in verdict.passed_over
    ]
    if verdict.status is None:
        lines.append(f"{verdict.job}: NOTHING COMPLETE to verify")
    else:
        status = verdict.status
        what = f"{status.generation.directory}, {len(status.ranks)}/{status.world or '?'} ranks"
        if status.state is not State.COMPLETE:
            said = status.state.value.upper()
        else:
            said = "CORRUPT" if verdict.problems else "ok, every checksum matches"
            said += f", {_ONLY}" if status.kind == WEIGHTS else ""
        lines.append(f"{verdict.job}: {what}, {human.size(status.nbytes)}: {said}")
    lines += [f"  {problem.key}: {problem.reason}" for problem in verdict.problems]
    return "\n".join(lines)


def _plain(status: GenerationStatus) -> dict[str, Any]:
    return {
        "generation": status.generation.directory,
        "step": status.generation.step,
        "incarnation": status.generation.incarnation,
        "state": status.state.value,
        "kind": status.kind,
        "world": status.world,
        "ranks": list(status.ranks),
        "nbytes": status.nbytes,
        "reason": status.reason,
    }


def _plain_verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "job": verdict.job,
        "ok": verdict.ok,
        "generation": _plain(verdict.status) if verdict.status else None,
        "problems": [{"key": p.key, "reason": p.reason} for p in verdict.problems],
        "finished": [generation.directory for generation in verdict.finished],
        "passed_over": [*map(_plain, verdict.passed_over)],
    }


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
