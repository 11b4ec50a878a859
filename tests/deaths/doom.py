"""Kills (or stops) its own process right before or right after the n-th thing that it does to the world.

Such a thing is a call by which something leaves the process or is taken from a queue of the kernel's: a
file is written, synced, linked, renamed or removed, a packet is sent or received, memory is made,
a row of the table of slots is copied. The interpreter tells of each (`sys.setprofile`), in every
thread, so the product needs no seam for it and runs as it always does, only slower. Whatever else
the process does between two of them nobody can see once it is dead.
"""

import os
import signal
import sys
import threading
from dataclasses import dataclass
from itertools import count
from types import FrameType
from typing import Any

# C functions, by name, where code of ours calls them.
_CALLS = frozenset(
    (
        "pwrite", "write", "fsync", "rename", "link", "mkdir", "unlink", "rmdir", "open",
        "memfd_create", "ftruncate", "posix_fallocate", "sendmsg", "send", "recvmsg", "accept",
        "execute", "flock", "fcntl",
    )
)  # fmt: skip
# Functions of ours that reach the world without any call: by a mapping, or by ctypes.
_OURS = frozenset(("Table._write", "allocate", "warm", "inspect"))
_PARTS = ("/evacd/", "/evac/")
# What opens most files only reads them, or walks to them.
_OPENS = ("temporary", "read_only")


@dataclass
class Doom:
    """One process's.

    Attributes:
        report: A file that is told of boundaries, a line each: ``phase what edge``.
        label: At which of them it dies; "" for none, and then it tells of each.
        nth: And at which of these, from 0.
        signal: By which; after a SIGSTOP it may go on.
    """

    report: str
    label: str = ""
    nth: int = 0
    signal: int = signal.SIGKILL

    def begin(self) -> None:
        """From now on it counts."""
        self._count = count()
        self._told = os.open(self.report, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        threading.setprofile(self._look)
        sys.setprofile(self._look)

    def _look(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event in ("c_call", "c_return", "c_exception"):
            what = getattr(arg, "__name__", "")
            if what not in _CALLS or not any(part in code.co_filename for part in _PARTS):
                return
            if what == "open" and code.co_name not in _OPENS:
                return
        elif code.co_qualname in _OURS:
            what = code.co_qualname
        else:
            return
        edge = "before" if event in ("c_call", "call") else "after"
        label = f"{phase(frame)} {what} {edge}"
        if not self.label:
            os.write(self._told, f"{label}\n".encode())
        elif label == self.label and next(self._count) == self.nth:
            os.write(self._told, f"{label}\n".encode())
            os.kill(os.getpid(), self.signal)


def phase(frame: FrameType | None) -> str:
    """What the daemon is about, by who called whom and which key of a store it is about."""
    found = "rest"
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith("/store/local.py"):
            if code.co_name == "_prepare":
                return "register"
            key = frame.f_locals.get("key")
            if isinstance(key, str):
                return _of_key(key, deletes=code.co_name == "_delete")
        for part, name in _OF_FILES:
            if part in code.co_filename:
                return name
        if code.co_filename.endswith(_SOCKETS):
            found = "socket"
        frame = frame.f_back
    return found


def _of_key(key: str, *, deletes: bool) -> str:
    name = key.rpartition("/")[2]
    if key.startswith("evac-probe"):
        return "probe"
    if deletes and not name.endswith(".pending"):
        return "retention"
    for end, found in _OF_NAMES:
        if name.endswith(end):
            return found
    return "flush"


# Of the steps of a commit.
_OF_NAMES = (
    (".pending", "pending"),
    (".manifest.json", "manifest"),
    (".metadata", "metadata"),
    ("evac-job.json", "marker"),
)
# The first that is found on the way up.
_OF_FILES = (
    ("/workloads/lending.py", "adoption"),
    ("/workloads/returns.py", "return"),
    ("/workloads/desk.py", "register"),
    ("/workloads/staging.py", "stage"),
    ("/workloads/inspection.py", "stage"),
    ("/workloads/memory.py", "stage"),
    ("/workloads/regions.py", "stage"),
    ("/report/standing_file.py", "record"),
    ("/report/journal.py", "record"),
    ("/report/fdstore.py", "fdstore"),
)
# Only where nothing on the way up says more.
_SOCKETS = ("/workloads/sockets.py", "/workloads/link.py")
