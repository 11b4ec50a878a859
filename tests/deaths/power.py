"""What a disk still has after the power went: a model of a file system that forgets what was not synced.

It is fed with the system calls that strace saw a process make. A file's bytes are safe once the file
was synced after they were written, a name once its folder was synced after it was given; nothing else
is promised by POSIX, whatever file systems do beyond it. The bytes themselves are taken from the real
files of the run.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CALLS = "openat,mkdir,mkdirat,linkat,renameat,renameat2,unlinkat,pwrite64,write,fsync,fdatasync"

_LINE = re.compile(r"^(\d+) +(.*)$")
_BEGUN = re.compile(r"^(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+)(?:<.*>)?(?: .*)?$")
_FD = r"(?:\d+|AT_FDCWD)<([^>]*)>"
_NAME = r'"((?:[^"\\]|\\.)*)"'
_CREATE = re.compile(rf"^{_FD}, {_NAME}, ([A-Z_|0-9]*O_CREAT[A-Z_|]*)")
_PATH = re.compile(rf"^{_NAME}")
_ONE_NAME = re.compile(rf"^{_FD}, {_NAME}")
_TWO_NAMES = re.compile(rf"^{_FD}, {_NAME}, {_FD}, {_NAME}")
_ONE_FD = re.compile(rf"^{_FD}(.*)$")
_PWRITE = re.compile(r", (\d+), (\d+)$")


@dataclass(frozen=True)
class Call:
    """One that has succeeded.

    Attributes:
        arguments: As strace writes them.
    """

    name: str
    arguments: str
    result: int


@dataclass(eq=False)
class File:
    """One inode.

    Attributes:
        last: Its path in the real run, where its bytes can be read; as far as is known.
    """

    last: str
    written: list[tuple[int, int]] = field(default_factory=list)
    synced: list[tuple[int, int]] = field(default_factory=list)


@dataclass(eq=False)
class Folder:
    """Names, as a process sees them; and how they came and went since they last were safe."""

    names: dict[str, "File | Folder"] = field(default_factory=dict)
    safe: dict[str, "File | Folder"] = field(default_factory=dict)
    unsafe: list[tuple[str, "File | Folder | None"]] = field(default_factory=list)

    def set(self, name: str, what: "File | Folder | None") -> None:
        """It has this name; None: nothing has it."""
        if what is None:
            self.names.pop(name, None)
        else:
            self.names[name] = what
        self.unsafe.append((name, what))

    def sync(self) -> None:
        """What it holds is safe."""
        self.safe, self.unsafe = dict(self.names), []

    def kept(self, chance: random.Random | None) -> dict[str, "File | Folder"]:
        """Names after the power went: of those that were not safe none, or the first few by chance."""
        found = dict(self.safe)
        for name, what in self.unsafe[: chance.randint(0, len(self.unsafe)) if chance else 0]:
            if what is None:
                found.pop(name, None)
            else:
                found[name] = what
        return found


def calls(trace: str) -> Iterator[Call]:
    """In the order of their ends."""
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        thread, text = found.groups()
        if (half := _BEGUN.match(text)) is not None:
            begun[thread] = half[1]
            continue
        if (rest := _RESUMED.match(text)) is not None:
            text = begun.pop(thread, "") + rest[1]
        call = _CALL.match(text)
        if call is not None and int(call[3]) >= 0:
            yield Call(call[1], call[2], int(call[3]))


class Disk:
    """All below *root*, as far as the calls tell.

    Args:
        archive: Where files lie that are not below *root* any more.
    """

    def __init__(self, root: Path, archive: Path | None = None) -> None:
        self._root = str(root)
        self._archive = archive
        self._top = Folder()

    def take(self, call: Call) -> bool:
        """One more has ended; True where anything here became safe or unsafe by it."""
        match call.name:
            case "openat" if (found := _CREATE.match(call.arguments)) is not None:
                file = File(found[2] if found[2].startswith("/") else f"{found[1]}/{found[2]}")
                return self._name(found[1], found[2], file, new=True)
            case "mkdir" if (found := _PATH.match(call.arguments)) is not None:
                return self._name("", found[1], Folder(), new=True)
            case "mkdirat" if (found := _ONE_NAME.match(call.arguments)) is not None:
                return self._name(found[1], found[2], Folder(), new=True)
            case "unlinkat" if (found := _ONE_NAME.match(call.arguments)) is not None:
                return self._name(found[1], found[2], None)
            case "linkat" | "renameat" | "renameat2":
                return self._move(call)
            case "pwrite64" | "write" | "fsync" | "fdatasync":
                return self._bytes(call)
        return False

    def rebuild(self, where: Path, chance: random.Random | None = None) -> None:
        """Write what is left after the power went.

        Args:
            chance: Decides what of the rest made it; None: nothing of it.
        """
        self._rebuild(self._top, where, chance)

    # --- the inside ----------------------------------------------------------------------

    def _at(self, path: str) -> "File | Folder | None":
        if path != self._root and not path.startswith(f"{self._root}/"):
            return None
        here: File | Folder | None = self._top
        for part in path.removeprefix(self._root).strip("/").split("/"):
            if part:
                here = here.names.get(part) if isinstance(here, Folder) else None
        return here

    def _name(
        self, folder: str, name: str, what: "File | Folder | None", new: bool = False
    ) -> bool:
        folder, _, name = (name if name.startswith("/") else f"{folder}/{name}").rpartition("/")
        here = self._at(folder)
        if not isinstance(here, Folder) or (new and name in here.names):
            return False
        here.set(name, what)
        return True

    def _move(self, call: Call) -> bool:
        found = _TWO_NAMES.match(call.arguments)
        if found is None or not isinstance(one := self._at(f"{found[1]}/{found[2]}"), File):
            return False
        one.last = f"{found[3]}/{found[4]}"
        if call.name != "linkat":
            self._name(found[1], found[2], None)
        return self._name(found[3], found[4], one)

    def _bytes(self, call: Call) -> bool:
        found = _ONE_FD.match(call.arguments)
        here = self._at(found[1]) if found is not None else None
        if here is None or found is None:
            return False
        if "sync" in call.name:
            if isinstance(here, File):
                here.synced = list(here.written)
            else:
                here.sync()
        elif isinstance(here, File):
            place = _PWRITE.search(found[2])
            end = max((start + n for start, n in here.written), default=0)
            here.written.append(
                (int(place[2]) if place and call.name == "pwrite64" else end, call.result)
            )
        return True

    def _rebuild(self, folder: Folder, where: Path, chance: random.Random | None) -> None:
        where.mkdir(exist_ok=True)
        for name, what in folder.kept(chance).items():
            if isinstance(what, Folder):
                self._rebuild(what, where / name, chance)
                continue
            extents = what.written if chance and chance.random() < 0.5 else what.synced
            content = bytearray(max((start + n for start, n in extents), default=0))
            source = Path(what.last)
            if self._archive is not None and not source.exists():
                source = self._archive / source.relative_to(self._root)
            real = source.read_bytes() if source.exists() else b""
            for start, nbytes in extents:
                content[start : start + nbytes] = real[start : start + nbytes]
            (where / name).write_bytes(content)
