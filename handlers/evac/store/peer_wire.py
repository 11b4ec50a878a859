"""The words between a peer's memory and who puts bytes there: bytes in, facts out.

The whole of it, well enough to speak it from another language, is in ``evacd/peer/PROTOCOL.md``. Pure.
"""

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum

from evac.errors import ProtocolError

VERSION = 2
# Where a URL names no token; it is the daemon's own setting, too.
TOKEN_VARIABLE = "EVAC_PEER_TOKEN_FILE"
NONCE = 32
PROOF = 32
# Under a header or a checksum: enough that nobody guesses one within a connection.
MAC = 16
MAX_KEY = 1024
MAX_TEXT = 1024
# A checksum follows each so many bytes, as in a manifest.
CHUNK = 4 * 1024 * 1024
# What one request carries of a body: it starts at a multiple of it, and only the last may be shorter.
PART = 16 * 1024 * 1024
MAX_BODY = 2**46
MAX_LIST = 64 * 1024 * 1024

_MAGIC = b"EVACPEER"
_HELLO = struct.Struct(f"!8sH{NONCE}s")
_WELCOME = struct.Struct(f"!8sHB{NONCE}s")
_VERDICT = struct.Struct(f"!B{PROOF}s")
_REQUEST = struct.Struct("!BxHQQQ")
_ANSWER = struct.Struct("!BxHQQ")
_SUM = struct.Struct("!I")

HELLO_NBYTES = _HELLO.size
WELCOME_NBYTES = _WELCOME.size
VERDICT_NBYTES = _VERDICT.size
REQUEST_NBYTES = _REQUEST.size
ANSWER_NBYTES = _ANSWER.size
SUM_NBYTES = _SUM.size + MAC


class Verb(IntEnum):
    """What is asked for."""

    BEGIN = 1
    PART = 2
    COMMIT = 3
    CREATE = 4
    ABORT = 5
    READ = 6
    LIST = 7
    DELETE = 8


class Status(IntEnum):
    """What came of it."""

    OK = 0
    MISSING = 1
    EXISTS = 2
    FULL = 3
    LEAVING = 4
    DAMAGED = 5
    REFUSED = 6
    GONE = 7


class Door(IntEnum):
    """Whether a connection is taken at all."""

    OPEN = 0
    BUSY = 1


@dataclass(frozen=True)
class Request:
    """One thing that is asked for.

    Attributes:
        put: Which body in the making; 0 for none.
        offset: In bytes, where the body is cut.
        nbytes: Of the body, of the part, or of what is to be read.
        key: Or a listing's prefix.
    """

    verb: Verb
    key: str = ""
    put: int = 0
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    Attributes:
        number: The put's id, the chunk that arrived damaged, or an object's whole length.
        nbytes: Of the bytes that follow.
        text: For a person, where it is not OK.
    """

    status: Status
    number: int = 0
    nbytes: int = 0
    text: str = ""


def hello(nonce: bytes) -> bytes:
    """What the client says first."""
    return _HELLO.pack(_MAGIC, VERSION, nonce)


def read_hello(data: bytes) -> bytes:
    """The client's nonce.

    Raises:
        ProtocolError: Something else is speaking.
    """
    magic, version, nonce = _HELLO.unpack(data)
    _same(magic, version)
    return bytes(nonce)


def welcome(door: Door, nonce: bytes) -> bytes:
    """What the server answers."""
    return _WELCOME.pack(_MAGIC, VERSION, door, nonce)


def read_welcome(data: bytes) -> tuple[bool, bytes]:
    """Whether it has room for us, and its nonce.

    Raises:
        ProtocolError: Something else listens there.
    """
    magic, version, door, nonce = _WELCOME.unpack(data)
    _same(magic, version)
    return door == Door.OPEN, bytes(nonce)


def verdict(proof: bytes | None) -> bytes:
    """Whether the client's proof was right; if so, with the server's own."""
    return _VERDICT.pack(0, proof) if proof is not None else _VERDICT.pack(1, bytes(PROOF))


def read_verdict(data: bytes) -> bytes | None:
    """The server's proof; None where it did not take ours."""
    refused, proof = _VERDICT.unpack(data)
    return None if refused else bytes(proof)


def reader_token(token: bytes) -> bytes:
    """What opens a peer for reading alone: as ``openssl dgst -sha256 -hmac TOKEN`` prints it.

    Whoever has it cannot tell the other one from it. Of no token it is none.
    """
    return _hmac(token, b"evac peer reader").hex().encode() if token else b""


class Secrets:
    """What both ends compute from the shared token and the two nonces of one connection.

    Args:
        token: Empty where none is asked for.
    """

    def __init__(self, token: bytes, client: bytes, server: bytes) -> None:
        nonces = client + server
        self.of_client = _hmac(token, b"evac peer client" + nonces)
        self.of_server = _hmac(token, b"evac peer server" + nonces)
        self.session = _hmac(token, b"evac peer session" + nonces)


class Seal:
    """Marks one direction's headers, so that nobody in between adds, drops or repeats one.

    Args:
        direction: ``b"c"`` for what the client sends, ``b"s"`` for the server.
    """

    def __init__(self, session: bytes, direction: bytes) -> None:
        self._session = session
        self._direction = direction
        self._count = 0

    def mark(self, header: bytes) -> bytes:
        """What stands behind *header*, the next one in this direction."""
        place = self._direction + self._count.to_bytes(8, "big")
        self._count += 1
        return _hmac(self._session, place + header)[:MAC]

    def check(self, header: bytes, mark: bytes) -> None:
        """Take the next header.

        Raises:
            ProtocolError: It is not what the other end has sent as its next.
        """
        if not same(self.mark(header), mark):
            raise ProtocolError("a header that the other end did not send")


def same(one: bytes, other: bytes) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(one, other)


def is_sealed(key: str) -> bool:
    """Whether the marks under a key's checksums cover its bytes, too: manifests, markers, `.metadata`.

    These say what all the rest must be, and `.metadata` is a pickle. Bodies are not: a keyed hash
    costs several times what their checksum does.
    """
    name = key.rpartition("/")[2]
    return name.startswith(".metadata") or name.endswith(".json")


def request(what: Request) -> bytes:
    """The header of a request, its key included, without its mark."""
    key = what.key.encode()
    return _REQUEST.pack(what.verb, len(key), what.put, what.offset, what.nbytes) + key


def key_nbytes(head: bytes) -> int:
    """How long the key behind the head of a request is.

    Raises:
        ProtocolError: Longer than any key.
    """
    nbytes = int(_REQUEST.unpack(head)[1])
    if nbytes > MAX_KEY:
        raise ProtocolError(f"a key of {nbytes} bytes, expected at most {MAX_KEY}")
    return nbytes


def read_request(header: bytes) -> Request:
    """Take a request apart.

    Raises:
        ProtocolError: It asks for what there is not.
    """
    verb, _, put, offset, nbytes = _REQUEST.unpack_from(header)
    try:
        return Request(Verb(verb), header[_REQUEST.size :].decode(), put, offset, nbytes)
    except ValueError as error:  # also: no UTF-8
        raise ProtocolError("a request for nothing that there is") from error


def answer(what: Answer) -> bytes:
    """The header of an answer, its text included, without its mark."""
    text = what.text.encode()[:MAX_TEXT]
    return _ANSWER.pack(what.status, len(text), what.number, what.nbytes) + text


def text_nbytes(head: bytes) -> int:
    """How long the text behind the head of an answer is.

    Raises:
        ProtocolError: Longer than any text.
    """
    nbytes = int(_ANSWER.unpack(head)[1])
    if nbytes > MAX_TEXT:
        raise ProtocolError(f"a text of {nbytes} bytes, expected at most {MAX_TEXT}")
    return nbytes


def read_answer(header: bytes) -> Answer:
    """Take an answer apart.

    Raises:
        ProtocolError: It is none that we know.
    """
    status, _, number, nbytes = _ANSWER.unpack_from(header)
    text = header[_ANSWER.size :].decode(errors="replace")
    try:
        return Answer(Status(status), number, nbytes, text)
    except ValueError as error:
        raise ProtocolError(f"an answer of kind {status}") from error


def checksum(crc: int) -> bytes:
    """What follows a chunk, without its mark."""
    return _SUM.pack(crc)


def read_checksum(data: bytes) -> int:
    """The CRC-32C of the chunk before."""
    return int(_SUM.unpack(data)[0])


def part_nbytes(total: int, offset: int) -> int:
    """How long the part of a body of *total* bytes at *offset* is.

    Raises:
        ProtocolError: No part begins there.
    """
    if offset % PART or not 0 <= offset < total:
        raise ProtocolError(f"no part begins at byte {offset} of {total}")
    return min(PART, total - offset)


def _same(magic: bytes, version: int) -> None:
    if magic != _MAGIC:
        raise ProtocolError("something else speaks there, not evac")
    if version != VERSION:
        raise ProtocolError(f"it speaks version {version}, we speak {VERSION}")


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")
