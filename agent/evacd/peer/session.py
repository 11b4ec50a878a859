"""One connection of a peer: the handshake, then one request after the other, in a thread of its own.

Whatever the other end sends, this thread alone has to do with it: nothing here touches the event loop.
"""

import json
import secrets
from collections.abc import Callable

import structlog

from evac.errors import ProtocolError, StoreRejected
from evac.store import peer_wire as wire
from evac.store.keys import split
from evac.store.peer_line import Line, Lost
from evac.store.peer_wire import Answer, Request, Status, Verb
from evacd.peer.blocks import Blocks
from evacd.peer.holdings import Holdings, Making

log = structlog.get_logger()

HANDSHAKE_SECONDS = 5.0
# A connection that nobody uses any more.
IDLE_SECONDS = 120.0
# Bodies that one connection has in the making.
MOST_PUTS = 16
_OK = Answer(Status.OK)
# What whoever holds the readers' token may ask for.
_READS = frozenset({Verb.READ, Verb.LIST})


class Stranger(Exception):
    """It does not hold the token."""


class Session:
    """Serves one connection. For its own thread.

    Args:
        leaving: Whether this node goes away itself.
        idle: Told whether nothing is under way on it.
    """

    def __init__(
        self,
        line: Line,
        holdings: Holdings,
        blocks: Blocks,
        leaving: Callable[[], bool],
        idle: Callable[[bool], None],
    ) -> None:
        self._line = line
        self._holdings = holdings
        self._blocks = blocks
        self._leaving = leaving
        self._idle = idle
        self._reads_only = False
        self._puts: set[int] = set()

    def shake_hands(self, token: bytes, *, room: bool) -> bool:
        """Learn that the other end holds the token, or its readers', and prove that we do; False where there is no room.

        Raises:
            Stranger: It does not.
            ProtocolError: It speaks something else.
            Lost: It is gone, or too slow.
        """
        line = self._line
        theirs = wire.read_hello(line.receive(wire.HELLO_NBYTES, patience=HANDSHAKE_SECONDS))
        ours = secrets.token_bytes(wire.NONCE)
        line.send(wire.welcome(wire.Door.OPEN if room else wire.Door.BUSY, ours))
        if not room:
            return False
        proof = line.receive(wire.PROOF, patience=HANDSHAKE_SECONDS)
        both = wire.Secrets(token, theirs, ours)
        if not wire.same(proof, both.of_client):
            both = wire.Secrets(wire.reader_token(token), theirs, ours)
            if not wire.same(proof, both.of_client):
                line.send(wire.verdict(None), patience=HANDSHAKE_SECONDS)
                raise Stranger
            self._reads_only = True
        line.send(wire.verdict(both.of_server))
        line.seal(wire.Seal(both.session, b"s"), wire.Seal(both.session, b"c"))
        return True

    def serve(self) -> None:
        """Answer requests until the other end has had enough.

        Raises:
            ProtocolError: It broke the protocol.
            Lost: It is gone, or too slow.
        """
        try:
            while self._line.wait(IDLE_SECONDS):
                try:
                    header = self._line.receive_header(wire.REQUEST_NBYTES, wire.key_nbytes)
                except Lost as lost:
                    if lost.untouched:
                        return
                    raise
                self._idle(False)
                self._do(wire.read_request(header))
                self._idle(not self._puts)
        finally:
            self._holdings.abort(self._puts)

    def _do(self, request: Request) -> None:
        if self._reads_only and request.verb not in _READS:
            if request.verb is Verb.PART:
                self._line.skip_chunks(min(request.nbytes, wire.PART))
            self._answer(Answer(Status.REFUSED, text="this token opens for reading alone"))
            return
        match request.verb:
            case Verb.BEGIN:
                self._answer(self._begin(request))
            case Verb.PART:
                self._answer(self._part(request))
            case Verb.COMMIT | Verb.CREATE:
                self._answer(self._finish(request))
            case Verb.ABORT:
                self._puts.discard(request.put)
                self._holdings.abort([request.put])
                self._answer(_OK)
            case Verb.READ:
                self._read(request)
            case Verb.LIST:
                self._list(request)
            case Verb.DELETE:
                self._answer(_refusal(request.key) or self._delete(request))

    def _begin(self, request: Request) -> Answer:
        if (refusal := _refusal(request.key)) is not None:
            return refusal
        if self._leaving():
            return Answer(Status.LEAVING)
        if request.nbytes > wire.MAX_BODY or len(self._puts) >= MOST_PUTS:
            return Answer(Status.REFUSED, text="too large, or too many at once")
        begun = self._holdings.begin(request.key, request.nbytes)
        if isinstance(begun, str):
            return Answer(Status.FULL, text=begun)
        self._puts.add(begun)
        return Answer(Status.OK, number=begun)

    def _part(self, request: Request) -> Answer:
        if not 0 < request.nbytes <= wire.PART:
            raise ProtocolError(f"a part of {request.nbytes} bytes")
        with self._holdings.part(request.put, request.offset, request.nbytes) as making:
            if making is None:
                self._line.skip_chunks(request.nbytes)
                return Answer(Status.GONE)
            return self._receive(making, request)

    def _receive(self, making: Making, request: Request) -> Answer:
        try:
            block = self._blocks.take(request.nbytes, self._line.stopped)
        except OSError as error:
            self._line.skip_chunks(request.nbytes)
            return Answer(Status.FULL, text=error.strerror or str(error))
        try:
            damaged = self._line.receive_chunks(block.view, sealed=wire.is_sealed(making.key))
        except BaseException:
            self._blocks.give(block, keep=True)
            raise
        if damaged is not None:
            self._blocks.give(block, keep=True)
            number = request.offset // wire.CHUNK + damaged
            log.warning("peer.damaged", key=making.key, chunk=number)
            return Answer(Status.DAMAGED, number=number)
        self._holdings.arrived(making, request.offset, block)
        return _OK

    def _finish(self, request: Request) -> Answer:
        done = self._holdings.finish(request.put, only_new=request.verb is Verb.CREATE)
        if done is None:
            return Answer(Status.GONE)
        self._puts.discard(request.put)
        return _OK if done else Answer(Status.EXISTS)

    def _read(self, request: Request) -> None:
        with self._holdings.opened(request.key) as held:
            if held is None:
                self._answer(Answer(Status.MISSING))
                return
            with held.bytes_at(request.offset, min(request.nbytes, wire.PART)) as found:
                age = "" if request.nbytes else str(self._holdings.age(held))
                answer = Answer(Status.OK, number=held.nbytes, nbytes=found.nbytes, text=age)
                self._answer(answer)
                self._line.send_chunks(found, sealed=wire.is_sealed(held.key))

    def _list(self, request: Request) -> None:
        text = json.dumps(self._holdings.below(request.key), separators=(",", ":")).encode()
        with memoryview(text) as document:
            self._answer(Answer(Status.OK, nbytes=document.nbytes))
            self._line.send_chunks(document, sealed=True)

    def _delete(self, request: Request) -> Answer:
        self._holdings.delete(request.key)
        return _OK

    def _answer(self, answer: Answer) -> None:
        self._line.send_header(wire.answer(answer))


def _refusal(key: str) -> Answer | None:
    try:
        split(key)
    except StoreRejected as error:
        return Answer(Status.REFUSED, text=error.reason)
    return None
