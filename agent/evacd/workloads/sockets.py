"""A listening AF_UNIX SOCK_SEQPACKET socket on the event loop, one daemon per path."""

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import structlog

from evacd.errors import AlreadyRunning, StateError

log = structlog.get_logger()

_BACKLOG = 512
# It is tried again several times a second for as long as it lasts.
_TELL_SECONDS = 60.0
_OUT_OF_FDS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """One bound socket; removes its file at the end.

    Args:
        mode: Of the socket's file.
        gid: Its group; None for the daemon's own.
        accepted: Called with every new connection.

    Raises:
        AlreadyRunning: Another daemon holds the path.
        StateError: The path cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        mode: int,
        gid: int | None,
        loop: asyncio.AbstractEventLoop,
        accepted: Callable[[socket.socket], None],
    ) -> None:
        self._path = path
        self._loop = loop
        self._accepted = accepted
        self._retry: asyncio.TimerHandle | None = None
        self._told = -_TELL_SECONDS
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock = _lock(path)
        except OSError as error:
            raise StateError(str(path.parent), error.strerror or str(error)) from error
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            _remove_stale(path)
            self._sock.bind(str(path))
            # Nobody can connect before listen, so nobody gets in before the mode is right.
            if gid is not None:
                os.chown(path, -1, gid)
            path.chmod(mode)
            self._sock.listen(_BACKLOG)
            self._inode = path.stat().st_ino
        except OSError as error:
            self._sock.close()
            os.close(self._lock)
            raise StateError(str(path), error.strerror or str(error)) from error
        except BaseException:
            self._sock.close()
            os.close(self._lock)
            raise
        self._sock.setblocking(False)
        loop.add_reader(self._sock, self._acceptable)

    def close(self) -> None:
        """Stop listening and remove the socket's file, where it is still ours."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock)
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self._sock.close()
        os.close(self._lock)

    def _acceptable(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_FDS:
                    if self._told + _TELL_SECONDS <= self._loop.time():
                        self._told = self._loop.time()
                        log.warning("sockets.exhausted", path=str(self._path), error=str(error))
                    self._loop.remove_reader(self._sock)
                    self._retry = self._loop.call_later(
                        0.2, self._loop.add_reader, self._sock, self._acceptable
                    )
                    return
                continue
            self._accepted(sock)


def _lock(path: Path) -> int:
    """One daemon per path, decided by the kernel: the lock goes with its holder.

    Raises:
        AlreadyRunning: Another daemon has it.
    """
    lock = os.open(
        path.with_name(f".{path.name}.lock"),
        os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o600,
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise AlreadyRunning(str(path)) from error
    return lock


def _remove_stale(path: Path) -> None:
    """Make way for our socket, if what lies there is a socket that nobody serves."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StateError(str(path), "exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its queue is full: somebody is there
    raise AlreadyRunning(str(path))
