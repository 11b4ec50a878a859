"""A machine for tests: this one's own tree under a layer that is thrown away, booted by systemd.

It has its own processes, network and mounts (systemd-nspawn). Around it lie a mount and a process
namespace that end with the test's own process, however that ends: nothing is left behind.
"""

import json
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.services.process import Unavailable

T = TypeVar("T")
LIMIT = 60.0
ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
BIN = Path(PYTHON).parent

# $1: the folder, $2: where the journal goes, $3: folders to open; the rest is for nspawn.
_BOOT = r"""
set -eu
mkdir -p "$1/layer" "$1/tree"
mount -t tmpfs layer "$1/layer"
mkdir "$1/layer/upper" "$1/layer/work"
mount -t overlay tree -o "lowerdir=/,upperdir=$1/layer/upper,workdir=$1/layer/work" "$1/tree"
cd "$1/tree"
# A known id: an unknown one means "first boot", which enables all that there is.
echo 0123456789abcdef0123456789abcdef > etc/machine-id
rm -rf etc/fstab etc/systemd/system/*.wants etc/systemd/logind.conf.d var/log/journal
# Nor anything of an evac that this machine has.
rm -rf opt/evac etc/evac var/lib/evac etc/systemd/system/evacd.service*
mkdir -p var/log/journal
ln -sfn /lib/systemd/system/multi-user.target etc/systemd/system/default.target
for unit in systemd-hwdb-update ldconfig systemd-journal-catalog-update systemd-udevd systemd-udev-trigger; do
    ln -sfn /dev/null "etc/systemd/system/$unit.service"
done
# Ordinary users' workloads run this Python, too.
for closed in $3; do chmod o+x ".$closed"; done
folder=$1 journal=$2
shift 3
systemd-nspawn --quiet --boot --directory="$folder/tree" --machine=evac-test \
    --register=no --console=read-only --private-network --link-journal=no \
    --bind="$journal:/var/log/journal" "$@"
"""


def needed() -> None:
    """Raises: Unavailable: With what is missing, and what would bring it."""
    if os.geteuid() != 0:
        raise Unavailable("needs root, to mount and to boot a container")
    for program in ("systemd-nspawn", "dbus-daemon", "nsenter", "unshare", "setpriv"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed: run tests/systemd/prepare")
    if not Path("/lib/systemd/systemd").exists():
        raise Unavailable("systemd is not installed: run tests/systemd/prepare")
    with tempfile.TemporaryDirectory() as folder:
        probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "probe", folder]
        done = subprocess.run(probe, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"may not mount here: {done.stderr.strip()}")


def until(what: str, probe: Callable[[], T | None]) -> T:
    """Poll until *probe* gives something true; fail after `LIMIT`, saying what was waited for."""
    ends = time.monotonic() + LIMIT  # noqa: TID251 - a real machine lives in real time
    while True:
        if found := probe():
            return found
        assert time.monotonic() < ends, f"{what}: not within {LIMIT:.0f} s"  # noqa: TID251
        time.sleep(0.05)


@dataclass(frozen=True)
class Line:
    """One entry of the journal.

    Attributes:
        who: Its syslog identifier: ``systemd``, ``evacd``.
    """

    who: str
    text: str


# pip has the same maker of scripts; what it writes into their first line is the name of its own Python.
_AS_PIP = """
import importlib.metadata, pathlib, site, sys, sysconfig
from pip._vendor.distlib.scripts import ScriptMaker

place, *packages = sys.argv[1:]
lines = "".join(f"import site; site.addsitedir({one!r})\\n" for one in packages)
pathlib.Path(sysconfig.get_path("purelib"), "evac.pth").write_text(lines)
for one in packages:
    site.addsitedir(one)
maker = ScriptMaker(None, f"{place}/bin")
maker.variants, maker.set_mode = {""}, True
for point in importlib.metadata.distribution("evac").entry_points.select(group="console_scripts"):
    maker.make(f"{point.name} = {point.value}")
"""


class Machine:
    """One that runs."""

    def __init__(self, nspawn: "subprocess.Popen[bytes]", init: int, journal: Path) -> None:
        self.nspawn = nspawn
        self._init = init
        self._journal = journal

    def call(self, *command: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a program in it, as root."""
        return subprocess.run(
            # A cwd from outside would have no name in there.
            ["nsenter", f"--target={self._init}", "--all", "--wd=/", *command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        )

    def do(self, *command: str, stdin: str | None = None) -> str:
        """The same, but it has to succeed; its stdout."""
        done = self.call(*command, stdin=stdin)
        assert done.returncode == 0, (
            f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n" + self.tail()
        )
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """A file in it, with its folder."""
        self.do("mkdir", "-p", os.path.dirname(path))
        self.do("tee", path, stdin=text)

    def as_if_by_pip(self, place: str) -> None:
        """An environment in *place* that has evac, with the programs that pip would write there.

        No package index can be reached from here: what it imports is what this Python has.
        """
        self.do(f"{sys.prefix}/bin/python3", "-m", "venv", "--clear", place)
        self.do(f"{place}/bin/python3", "-c", _AS_PIP, place, *site.getsitepackages())

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.do("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def status(self) -> dict[str, Any] | None:
        """As `evac status --json`; None while nobody answers."""
        done = self.call(str(BIN / "evac"), "status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def lines(self) -> list[Line]:
        """The journal from the first entry on; readable when the machine is off, too."""
        done = subprocess.run(
            ["journalctl", f"--directory={self._journal}", "--output=json", "--merge", "--quiet"],
            capture_output=True,
            text=True,
            check=True,
        )
        entries = map(json.loads, done.stdout.splitlines())
        return [
            Line(str(one.get("SYSLOG_IDENTIFIER", "")), str(one.get("MESSAGE", "")))
            for one in entries
        ]

    def tail(self) -> str:
        """Its last lines, for a failure's message."""
        return "\n".join(f"{one.who}: {one.text}" for one in self.lines()[-60:])

    def has(self, who: str, text: str) -> bool:
        """Whether *who* has written a line with *text*."""
        return any(one.who == who and text in one.text for one in self.lines())

    def kill(self) -> None:
        """As if the hypervisor had pulled the plug."""
        if self.nspawn.poll() is None:
            os.kill(self._init, signal.SIGKILL)
        self.nspawn.wait(LIMIT)


@contextmanager
def booted(folder: Path) -> Iterator[Machine]:
    """A machine until the block ends.

    Raises:
        Unavailable: It cannot be booted here.
    """
    needed()
    journal = folder / "journal"
    journal.mkdir(parents=True)
    log = folder / "console.log"
    with log.open("wb") as console:
        nspawn = subprocess.Popen(
            # nspawn, when killed, leaves its container running; a process namespace goes as a whole.
            ["setpriv", "--pdeathsig", "SIGKILL",
             "unshare", "--mount", "--propagation", "private",
             "--pid", "--fork", "--kill-child", "--mount-proc",
             "bash", "-c", _BOOT, "boot", str(folder), str(journal), _closed(), *_flags()],
            stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )  # fmt: skip
    machine: Machine | None = None
    try:

        def up() -> Machine | None:
            if nspawn.poll() is not None:
                raise Unavailable(f"nspawn: {log.read_text(errors='replace')[-500:].strip()}")
            init = _init_of(nspawn.pid)
            if init is None:
                return None
            one = Machine(nspawn, init, journal)
            state = one.call("systemctl", "is-system-running").stdout.strip()
            return one if state in {"running", "degraded"} else None

        machine = until("the machine boots", up)
        yield machine
    finally:
        if machine is not None:
            machine.kill()
        else:
            nspawn.kill()
            nspawn.wait()


_PARTS = (ROOT, Path(sys.prefix), Path(sys.base_prefix))


def _closed() -> str:
    """Folders above this Python that only root may pass, ``/root`` say."""
    above = {str(one) for part in _PARTS for one in (part, *part.parents)}
    return " ".join(sorted(one for one in above if not os.stat(one).st_mode & 1))


def _flags() -> Sequence[str]:
    # Where systemd runs this machine, it gives the container a scope; elsewhere nobody would.
    keep = [] if Path("/run/systemd/system").is_dir() else ["--keep-unit"]
    outside = {str(path) for path in _PARTS if _hidden(path)}
    return [*keep, *(f"--bind-ro={path}" for path in sorted(outside))]


def _hidden(path: Path) -> bool:
    """Not to be seen in the machine: on another file system, or where it mounts its own."""
    other = os.stat(path).st_dev != os.stat("/").st_dev
    return other or any(path.is_relative_to(own) for own in ("/dev", "/run", "/tmp"))


def _init_of(pid: int) -> int | None:
    """Its systemd: below *pid*, the first process of a process namespace within ours for it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            status = Path(f"/proc/{child}/status").read_text()
            pids = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            # One number here, one in the namespace around nspawn, one in its own.
            if pids.split()[1:][2:] == ["1"]:
                return int(child)
            if (found := _init_of(int(child))) is not None:
                return found
    except OSError:
        return None
    return None
