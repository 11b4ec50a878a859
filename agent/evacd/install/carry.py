"""Carries out an install and its undoing, and says what it does: a line for each step."""

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from evacd.errors import StateError
from evacd.install import record
from evacd.install.pages import UNIT, Page, pages
from evacd.install.record import Record

# What systemd itself looks at: sd_booted(3).
_BOOTED = Path("/run/systemd/system")
_KEPT = "changed by hand, so it stays as it is"


class Verdict(Enum):
    """What becomes of one file."""

    WRITE = "write"
    UPDATE = "update"
    SAME = "same"
    KEEP = "keep"


def judge(*, wanted: str, found: str | None, remembered: str | None) -> Verdict:
    """Decide on one file, by its checksums.

    Args:
        wanted: What this version would write.
        found: What lies there; None for nothing.
        remembered: What we wrote there last; None for never.
    """
    if found is None:
        return Verdict.WRITE
    if found == wanted:
        return Verdict.SAME
    return Verdict.UPDATE if found == remembered else Verdict.KEEP


def install(root: Path, *, python: str, dry_run: bool, say: Callable[[str], None]) -> None:
    """Write the files of the service and enable it; what somebody changed stays.

    Args:
        root: ``/``, or the tree of a machine that does not run.
        python: The interpreter that the unit will start.
        dry_run: Only say it.
        say: Gets each line.

    Raises:
        StateError: A file cannot be written, or systemd is not there or refuses.
    """
    hands = _Hands(root, dry_run=dry_run, say=say)
    version = _systemd_version()
    hands.needs_systemd()
    before = hands.remembered
    try:
        for page in pages(python, systemd=version):
            hands.page(page)
    finally:
        # Where one cannot be written, the others are there all the same.
        hands.remember()
    hands.systemd("systemd-sysusers", "evac.conf")
    if hands.live:
        hands.systemd("systemd-tmpfiles", "--create", "evac.conf")
        hands.systemd("systemctl", "daemon-reload")
        hands.read_logind_again()
    if not before.enabled:
        hands.systemd("systemctl", "enable", UNIT)
        hands.remember(enabled=True)


def uninstall(root: Path, *, dry_run: bool, say: Callable[[str], None]) -> None:
    """Stop the service and remove what `install` wrote, and nothing else.

    A running order is finished first, as with every stop.

    Raises:
        StateError: A file cannot be removed, or systemd is not there or refuses.
    """
    hands = _Hands(root, dry_run=dry_run, say=say)
    if not hands.remembered.files:
        say(f"nothing  no install is remembered in {hands.at(record.PATH)}")
        return
    hands.needs_systemd()
    if hands.at(f"/etc/systemd/system/{UNIT}").exists():
        hands.systemd("systemctl", "disable", *(["--now"] if hands.live else []), UNIT)
    for path, written in hands.remembered.files.items():
        hands.remove(path, written)
    for folder in reversed(hands.remembered.folders):
        hands.remove_folder(folder)
    hands.forget()
    if hands.live:
        hands.systemd("systemctl", "daemon-reload")
        hands.read_logind_again()
    say("stay     /var/lib/evac (the incidents) and the group evac")


@dataclass
class _Hands:
    """Does it, or in a dry run only says it."""

    root: Path
    dry_run: bool
    say: Callable[[str], None]
    remembered: Record = field(init=False)

    def __post_init__(self) -> None:
        self.remembered = record.read(self.at(record.PATH))

    @property
    def live(self) -> bool:
        """This is the machine that we run on."""
        return self.root == Path("/")

    def at(self, path: str) -> Path:
        """Where *path* of the machine lies for us."""
        return self.root / path.lstrip("/")

    def page(self, page: Page) -> None:
        """One file, as `judge` decides."""
        file = self.at(page.path)
        wanted = _sum(page.text.encode())
        verdict = judge(
            wanted=wanted,
            found=self._found(file),
            remembered=self.remembered.files.get(page.path),
        )
        note = f" ({_KEPT})" if verdict is Verdict.KEEP else ""
        self.say(f"{verdict.value:<8} {file}{note}")
        if verdict is Verdict.KEEP:
            return
        if verdict is not Verdict.SAME and not self.dry_run:
            self._folder(page.path)
            with _said(file):
                _write(file, page.text, page.mode)
        self.remembered = replace(
            self.remembered, files={**self.remembered.files, page.path: wanted}
        )

    def remember(self, *, enabled: bool = False) -> None:
        """Keep the record."""
        self.remembered = replace(self.remembered, enabled=self.remembered.enabled or enabled)
        if self.dry_run:
            return
        file = self.at(record.PATH)
        with _said(file):
            file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _write(file, record.text_of(self.remembered), 0o644)

    def forget(self) -> None:
        """No install any more."""
        if not self.dry_run:
            with _said(self.at(record.PATH)):
                self.at(record.PATH).unlink(missing_ok=True)

    def remove(self, path: str, written: str) -> None:
        """One file, unless somebody changed it."""
        file = self.at(path)
        found = self._found(file)
        if found is None:
            self.say(f"gone     {file}")
        elif found != written:
            self.say(f"keep     {file} ({_KEPT})")
        else:
            self.say(f"remove   {file}")
            if not self.dry_run:
                with _said(file):
                    file.unlink()

    def remove_folder(self, path: str) -> None:
        """One of ours, unless something else lies in it."""
        folder = self.at(path)
        if self.dry_run or not folder.is_dir() or any(folder.iterdir()):
            return
        self.say(f"remove   {folder}")
        with _said(folder):
            folder.rmdir()

    def needs_systemd(self) -> None:
        """Raises: StateError: This machine is run by something else."""
        if self.live and not _BOOTED.is_dir():
            reason = (
                "this machine is not run by systemd; `evacd run` needs none, --root DIR installs"
            )
            raise StateError(str(_BOOTED), f"{reason} into an image")

    def systemd(self, program: str, *arguments: str) -> None:
        """One call of systemd's tools."""
        at = [] if self.live else [f"--root={self.root}"]
        command = [program, *at, *arguments]
        self.say(f"run      {' '.join(command)}")
        if not self.dry_run:
            _run(command)

    def read_logind_again(self) -> None:
        """Have logind take its drop-in; one that does not run reads it when it starts."""
        command = ["systemctl", "kill", "--signal=HUP", "systemd-logind.service"]
        self.say(f"run      {' '.join(command)}")
        if not self.dry_run:
            subprocess.run(command, capture_output=True, check=False)

    def _folder(self, path: str) -> None:
        for folder in reversed(Path(path).parents):
            at = self.at(str(folder))
            if at.is_dir():
                continue
            with _said(at):
                at.mkdir(mode=0o755)
            self.remembered = replace(
                self.remembered, folders=(*self.remembered.folders, str(folder))
            )

    def _found(self, file: Path) -> str | None:
        with _said(file):
            try:
                return _sum(file.read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                return None


def _systemd_version() -> int:
    word = _run(["systemctl", "--version"]).split()[1:2]
    return int(word[0]) if word and word[0].isdecimal() else 0


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        reason = f"{error.strerror}; the service needs systemd, `evacd run` does not"
        raise StateError(command[0], reason) from error
    if done.returncode != 0:
        raise StateError(" ".join(command), done.stderr.strip() or f"exit code {done.returncode}")
    return done.stdout


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(file: Path, text: str, mode: int) -> None:
    """All of it or nothing, whenever we are killed."""
    aside = file.with_name(f".{file.name}.evac-new")
    aside.unlink(missing_ok=True)
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as new:
        new.write(text)
        new.flush()
        os.fchmod(new.fileno(), mode)
        os.fsync(new.fileno())
    aside.rename(file)


@contextmanager
def _said(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise StateError(str(path), f"{error.strerror}: run it as root") from error
    except OSError as error:
        raise StateError(str(path), error.strerror or str(error)) from error
