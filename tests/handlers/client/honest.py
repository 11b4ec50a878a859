"""A small honest daemon for the client's tests: real sockets, real memfds, `evac.wire`.

It keeps the promises of PROTOCOL.md for any number of clients, and can be told to be slow or
to hand out what a client must not accept.
"""

import fcntl
import json
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from typing import TypeVar

from evac.segment import PAGE, Header
from evac.wire import (
    MAX_PACKET,
    Accepted,
    Acquire,
    Adopt,
    AskStatus,
    Done,
    Granted,
    HandBack,
    Hello,
    Leave,
    Message,
    OrderGiven,
    Packet,
    Refuse,
    Register,
    Registered,
    Release,
    Reserve,
    Slot,
    Staged,
    Status,
    Welcome,
    decode,
    encode,
)

LIMIT = 60.0
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_M = TypeVar("_M", bound=Message)


def sealed(nbytes: int, content: bytes = b"", seals: int = SIZE_SEALS) -> int:
    """A memfd of *nbytes* with *content* at its start; the fd is the caller's."""
    fd = os.memfd_create("evac-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    os.pwrite(fd, content, 0)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@dataclass
class Peer:
    """One connected client."""

    socket: socket.socket
    register: Register | None = None
    memory: dict[int, int] = field(default_factory=dict)
    # In the order in which they are granted next.
    free: list[int] = field(default_factory=list)
    writing: int | None = None


class Daemon:
    """Accepts clients in a thread of its own until `stop`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed = Condition()
        self.heard: list[Message] = []
        self.staged: list[tuple[Register, Header, bytes]] = []
        self.peers: list[Peer] = []
        self.ended = 0
        # Knobs.
        self.refuse_job = ""
        self.refuse_staged = ""
        self.slots_at_most = 16
        # Of a reservation; the others come by `bring`.
        self.slots_at_once = 16
        self.busy = False
        self.running: OrderGiven | None = None
        self.make_slot: Callable[[int], list[int]] = lambda nbytes: [sealed(nbytes)]
        # Requests of these types wait until `answer_held`.
        self.hold: set[str] = set()
        self._held: list[tuple[Peer, Packet]] = []
        self._coming: list[Callable[[], None]] = []
        self._numbers = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._wake = os.eventfd(0)
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self, kind: type[_M], count: int = 1) -> list[_M]:
        """Wait until *count* messages of *kind* were heard."""

        def found() -> list[_M]:
            return [one for one in self.heard if isinstance(one, kind)]

        with self.changed:
            assert self.changed.wait_for(lambda: len(found()) >= count, LIMIT), self.heard
            return found()

    def wait_until(self, holds: Callable[[], object]) -> None:
        """Wait until *holds*, looked at whenever something happened."""
        with self.changed:
            assert self.changed.wait_for(holds, LIMIT)

    def tell(self, message: Message, peer: Peer | None = None) -> None:
        """Send *message* unasked, to all or to one."""
        for one in list(self.peers) if peer is None else [peer]:
            self._send(one, message)

    def tell_raw(self, packet: bytes) -> None:
        """Send bytes that need not be the protocol."""
        for peer in list(self.peers):
            peer.socket.send(packet)

    def answer_held(self) -> None:
        """Answer what was held back."""
        with self.changed:
            self.hold, held = set(), self._held
            self._held = []
        for peer, packet in held:
            self._answer(peer, packet)

    def bring(self) -> None:
        """Send the next slot of those that are still to come."""
        self._coming.pop(0)()

    def stop(self) -> None:
        """Be gone, like a daemon that died: the socket file stays."""
        os.eventfd_write(self._wake, 1)
        self._thread.join(LIMIT)
        self._listener.close()
        for peer in self.peers:
            self._forget(peer)
        self.peers.clear()
        os.close(self._wake)

    def _run(self) -> None:
        while True:
            peers = [peer.socket.fileno() for peer in self.peers]
            watched = [self._wake, self._listener.fileno(), *peers]
            ready, _, _ = select.select(watched, [], [])
            if self._wake in ready:
                return
            if self._listener.fileno() in ready:
                with self.changed:
                    self.peers.append(Peer(self._listener.accept()[0]))
            for peer in [one for one in self.peers if one.socket.fileno() in ready]:
                self._read(peer)

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.socket.recv(MAX_PACKET + 1)
        except ConnectionError:
            data = b""
        if not data:
            with self.changed:
                self.peers.remove(peer)
                self._forget(peer)
                self.ended += 1
                self.changed.notify_all()
            return
        packet = decode(data)
        with self.changed:
            held = packet.message.type in self.hold
            if held:
                self._held.append((peer, packet))
        if not held:
            self._answer(peer, packet)
        with self.changed:
            self.heard.append(packet.message)
            self.changed.notify_all()

    def _answer(self, peer: Peer, packet: Packet) -> None:
        message, re = packet.message, packet.id
        match message:
            case Hello():
                self._send(peer, Welcome(version=1, daemon="test", node="node-1"), re)
            case Register() if message.job == self.refuse_job:
                self._send(peer, Refuse(reason="not on this node", fatal=True), re)
            case Register():
                peer.register = message
                board = Registered(
                    workload=len(self.peers), prefix=f"me/{message.job}", stores=("file:///s",)
                )
                self._send(peer, board, re)
                if self.running is not None:
                    self._send(peer, self.running)
            case Adopt():
                self._send(peer, Refuse(reason="nothing is lent here"), re)
            case HandBack():
                # Its memory went with the one before it: nothing is remembered here.
                self._send(peer, Refuse(reason="that slot is not known here"), re)
            case Reserve():
                self._reserve(peer, message, re)
            case Acquire():
                # Asked twice, the same one again.
                if peer.writing is None and peer.free and not self.busy:
                    peer.writing = peer.free.pop(0)
                if peer.writing is not None:
                    self._send(peer, Granted(slot=peer.writing), re)
                else:
                    self._send(peer, Refuse(reason="no slot is free"), re)
            case Staged():
                self._stage(peer, message, re)
            case Release():
                self._free(peer, message.slot)
            case Leave():
                self._send(peer, Accepted(), re)
            case AskStatus():
                document = json.dumps({"node": "node-1", "workloads": len(self.peers)}).encode()
                self._send(
                    peer, Status(nbytes=len(document)), re, [sealed(len(document), document)]
                )
            case Done():
                pass
            case _:
                self._send(peer, Refuse(reason=f"unexpected {message.type}", fatal=True), re)

    def _reserve(self, peer: Peer, message: Reserve, re: int | None) -> None:
        peer.free, peer.writing = [], None
        count = min(message.slots, self.slots_at_most)
        if count == 0:
            self._send(peer, Refuse(reason="the budget is 0 bytes"), re)
        send: list[Callable[[], None]] = [
            partial(self._give, peer, message, re, n == count) for n in range(1, count + 1)
        ]
        self._coming = send[self.slots_at_once :]
        for one in send[: self.slots_at_once]:
            one()

    def _give(self, peer: Peer, message: Reserve, re: int | None, last: bool) -> None:
        fds = self.make_slot(message.nbytes)
        self._numbers += 1
        if len(fds) == 1:
            peer.memory[self._numbers] = os.dup(fds[0])
            peer.free.append(self._numbers)
        slot = Slot(slot=self._numbers, nbytes=message.nbytes, last=last)
        self._send(peer, slot, re, fds)

    def _stage(self, peer: Peer, message: Staged, re: int | None) -> None:
        if peer.writing != message.slot:
            self._send(peer, Refuse(reason=f"slot {message.slot} was not acquired"), re)
            return
        self._free(peer, message.slot)
        if self.refuse_staged:
            self._send(peer, Refuse(reason=self.refuse_staged), re)
            return
        fd = peer.memory[message.slot]
        size = os.fstat(fd).st_size
        header = Header.unpack(os.pread(fd, PAGE, 0), slot_nbytes=size)
        assert peer.register is not None
        body = os.pread(fd, header.body_nbytes, PAGE)
        with self.changed:
            self.staged.append((peer.register, header, body))
            self.changed.notify_all()
        self._send(peer, Accepted(), re)

    def _send(
        self, peer: Peer, message: Message, re: int | None = None, fds: list[int] | None = None
    ) -> None:
        with suppress(ConnectionError):
            socket.send_fds(peer.socket, [encode(message, re=re)], fds or [])
        for fd in fds or []:
            os.close(fd)

    def _free(self, peer: Peer, number: int) -> None:
        if peer.writing == number:
            peer.writing = None
            peer.free.append(number)

    def _forget(self, peer: Peer) -> None:
        peer.socket.close()
        for fd in peer.memory.values():
            os.close(fd)
        peer.memory.clear()
