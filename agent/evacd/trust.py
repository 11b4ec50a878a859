"""Whether a file that this daemon obeys is in safe hands: its own, or root's.

A root daemon that runs a program, or believes a file, which somebody else may change is that
somebody's root shell. So the file, and every folder on the way to it, links followed, has to
belong to root or to the daemon's own user, and nobody else may write there: not everybody,
and no group but root's or the daemon's own. A sticky folder may be written by all, because
who does not own what lies in it can neither replace nor remove that.

The limits: of a command its program is looked at, and the script where the program is an
interpreter (`INTERPRETERS`); not what a program loads or starts in turn, nor the interpreter
behind ``#!``. A file system's access lists count as far as the group's bits show them.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Their first argument that is a file is a program, too.
INTERPRETERS = ("bash", "dash", "ksh", "node", "perl", "python", "ruby", "sh", "zsh")
# After these there is no script: what is run is the argument, or found by its name.
_NO_SCRIPT = ("-c", "-e", "-m")
_MOST_LINKS = 40


@dataclass(frozen=True)
class Doubt:
    """Why a path is not trusted, and what a person can do."""

    reason: str
    cure: str


def doubt_of(
    path: str, *, mode: int, owner: int, group: int, own_user: int, own_group: int
) -> Doubt | None:
    """What is wrong with one file, folder or link. Pure.

    Args:
        path: For people.
        mode: `st_mode`.
        own_user: The daemon's.
        own_group: The daemon's.
    """
    if owner not in (0, own_user):
        to = "root" if own_user == 0 else f"root or user {own_user}"
        return Doubt(f"{path} belongs to user {owner}, not to {to}", f"chown root {path}")
    # A link's bits mean nothing: who owns its folder decides.
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return None
    if mode & stat.S_IWOTH:
        return Doubt(f"{path} is world-writable: anybody may change it", f"chmod o-w {path}")
    if mode & stat.S_IWGRP and group not in (0, own_group):
        return Doubt(f"{path} may be changed by group {group}", f"chmod g-w {path}")
    return None


def doubt_of_found(path: str, found: os.stat_result) -> Doubt | None:
    """See `doubt_of`; for this process."""
    return doubt_of(
        path,
        mode=found.st_mode,
        owner=found.st_uid,
        group=found.st_gid,
        own_user=os.geteuid(),
        own_group=os.getegid(),
    )


def doubt_of_path(path: Path) -> Doubt | None:
    """What is wrong with *path* or a folder on the way to it; the outermost first. Blocks.

    Raises:
        OSError: It cannot be looked at; FileNotFoundError where no folder above the missing
            one is doubted.
    """
    for each in _way(path):
        if doubt := doubt_of_found(each, os.lstat(each)):
            return doubt
    return None


def program_of(command: Sequence[str], environ: Mapping[str, str]) -> str | Doubt | None:
    """The program of *command*, or why it must not be run. Blocks.

    Args:
        environ: Of the program: a name without a slash is looked for in its ``PATH``.

    Returns:
        The path to run; None where there is none, so that starting it says why.

    Raises:
        OSError: It cannot be looked at.
        ValueError: A path has a null byte.
    """
    path = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    if path is None:
        return None
    script = _script(command)
    for each in (path, script):
        if each is not None and (doubt := doubt_of_path(Path(each))):
            return doubt
    return path


def _script(command: Sequence[str]) -> str | None:
    """What an interpreter is to run; None where that is no file."""
    if Path(command[0]).name.rstrip("0123456789.") not in INTERPRETERS:
        return None
    for argument in command[1:]:
        if argument in _NO_SCRIPT:
            return None
        if not argument.startswith("-") and Path(argument).is_file():
            return argument
    return None


def _way(path: Path) -> Iterator[str]:
    """*path*, after all folders and links on the way to it."""
    here, links = "/", 0
    yield here
    rest = list(reversed(os.path.join(os.getcwd(), path).split("/")))
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        there = os.path.join(here, name)
        yield there
        if not stat.S_ISLNK(os.lstat(there).st_mode):
            here = there
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        to = os.readlink(there)
        here = "/" if to.startswith("/") else here
        rest += reversed(to.split("/"))
