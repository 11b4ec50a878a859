"""systemd's fd store: what it keeps for the next daemon, and what it kept for this one.

https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html (FDSTORE, FDSTOREREMOVE,
FDNAME, FDPOLL, BARRIER) and sd_listen_fds.html, read 2026-11. It is told by a thread: a service
manager with a full queue must not hold up the loop, and here nothing may be lost for that.
"""

import array
import os
import queue
import select
import socket
import threading
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass

import structlog

from evacd.report.systemd import address_of
from evacd.workloads.keeping import Given

log = structlog.get_logger()

_FIRST = 3
_SEND_SECONDS = 10.0
_STOP_SECONDS = 5.0
_AGAIN_SECONDS = 1.0


def given(environ: MutableMapping[str, str] = os.environ) -> list[Given]:
    """The fds that came with this process, and which no child of it shall inherit.

    To be called once, before anything else opens files: it takes them out of the environment.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    found = []
    for number in range(int(count)):
        with suppress(OSError):
            os.set_inheritable(_FIRST + number, False)
            name = names[number] if number < len(names) else "unknown"
            found.append(Given(name, _FIRST + number))
    return found


@dataclass(frozen=True)
class _Word:
    text: str
    fd: int | None


class SystemdFds:
    """See `FdStore`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._words: queue.SimpleQueue[_Word | None] = queue.SimpleQueue()
        self._undone = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evacd-fdstore", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """See `FdStore`."""
        return self._words.qsize() + self._undone

    def push(self, name: str, fd: int) -> None:
        """See `FdStore.push`."""
        try:
            mine = os.dup(fd)
        except OSError as error:
            log.warning("memory.not_stored", name=name, reason=error.strerror)
            return
        # Memory can be waited for by nobody: there is nothing to poll.
        self._words.put(_Word(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", mine))

    def remove(self, name: str) -> None:
        """See `FdStore.remove`."""
        self._words.put(_Word(f"FDSTOREREMOVE=1\nFDNAME={name}", None))

    def stop(self) -> None:
        """Wait, but not for long, until systemd has taken all of it.

        What a process sent that has ended by the time it is read may be taken for nobody's.
        """
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            self._words.put(_Word("BARRIER=1", write))
            self._words.put(None)
            self._stopping.set()
            self._thread.join(_STOP_SECONDS)
            poll = select.poll()
            poll.register(read, 0)
            if self._thread.is_alive() or not poll.poll(1000 * _STOP_SECONDS):
                log.warning("memory.unstored", reason="systemd has not taken all fds in time")
        finally:
            os.close(read)

    def _run(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(_SEND_SECONDS)
            while (word := self._words.get()) is not None:
                self._undone = 1
                try:
                    self._say_until_heard(sender, word)
                finally:
                    self._undone = 0
                    if word.fd is not None:
                        os.close(word.fd)

    def _say_until_heard(self, sender: socket.socket, word: _Word) -> None:
        """In the order of the words: one that is left out may undo another that is not."""
        told = False
        while True:
            # Before the try: what is tried after the stop was told of is tried once more.
            last = self._stopping.is_set()
            try:
                self._say(sender, word)
            except OSError as error:
                if not told:
                    log.warning("memory.not_stored", waiting=self.waiting, reason=str(error))
                told = True
                if last:
                    return
                self._stopping.wait(_AGAIN_SECONDS)
            else:
                if told:
                    log.info("memory.stored", waiting=self.waiting)
                return

    def _say(self, sender: socket.socket, word: _Word) -> None:
        rights = array.array("i", [] if word.fd is None else [word.fd])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
        sender.sendmsg([word.text.encode()], ancillary, 0, self._address)


def fd_store(environ: MutableMapping[str, str] = os.environ) -> SystemdFds | None:
    """The service manager's, where it has one for this service."""
    # FDSTORE tells how many it takes since systemd 254; before, the unit says so to itself alone.
    address = address_of(environ)
    return None if address is None or environ.get("FDSTORE") == "0" else SystemdFds(address)
