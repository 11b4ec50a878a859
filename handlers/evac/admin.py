"""One question to evacd and its answer, for commands; blocking, no thread, no retry."""

import array
import grp
import os
import pwd
import socket
import stat
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

from evac._clock import monotonic
from evac._memory import read_answer
from evac.errors import NotConnected, ProtocolError, Refused
from evac.wire import (
    MAX_FDS,
    MAX_PACKET,
    PROTOCOL,
    AskStatus,
    Hello,
    Message,
    Refuse,
    Status,
    Welcome,
    decode,
    encode,
)

_Answer = TypeVar("_Answer")
_HELLO, _REQUEST = 1, 2


def request(path: str | os.PathLike[str], message: Message, *, timeout: float) -> Message:
    """Ask *message* of the daemon at *path*, and wait at most *timeout* seconds.

    Returns:
        The answer; a `Refuse` where the daemon said no to the message.

    Raises:
        NotConnected: No such socket, no permission (and who has it), or no answer.
        Refused: The daemon does not talk to us at all.
        ProtocolError: What answers is not evacd.
    """
    return _exchange(os.fspath(path), message, timeout, lambda answer, _fds: answer)


def read_status(path: str | os.PathLike[str], timeout: float) -> dict[str, Any]:
    """The daemon's own account of its node.

    Raises:
        NotConnected: See `request`.
        Refused: The daemon said no.
        ProtocolError: What answers is not evacd.
    """

    def read(answer: Message, fds: list[int]) -> dict[str, Any]:
        _no_refusal(answer)
        if not isinstance(answer, Status) or len(fds) != 1:
            raise ProtocolError(f"status was answered with {answer.type!r} and {len(fds)} fds")
        return read_answer(fds[0], answer.nbytes)

    return _exchange(os.fspath(path), AskStatus(), timeout, read)


def _exchange(
    path: str, message: Message, timeout: float, read: Callable[[Message, list[int]], _Answer]
) -> _Answer:
    until = monotonic() + timeout
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as line:
        line.settimeout(timeout)
        try:
            line.connect(path)
            line.send(encode(Hello(version=PROTOCOL, client="evac"), id=_HELLO))
            _answer(line, _HELLO, until, _welcomed)
            line.send(encode(message, id=_REQUEST))
            return _answer(line, _REQUEST, until, read)
        except OSError as error:
            raise NotConnected(path, _reason(path, error, timeout)) from error


def _welcomed(answer: Message, _fds: list[int]) -> None:
    _no_refusal(answer)
    if not isinstance(answer, Welcome):
        raise ProtocolError(f"hello was answered with {answer.type!r}")


def _no_refusal(answer: Message) -> None:
    if isinstance(answer, Refuse):
        raise Refused(answer.reason)


def _answer(
    line: socket.socket, re: int, until: float, read: Callable[[Message, list[int]], _Answer]
) -> _Answer:
    """Wait for the answer to *re*; orders and advice that come in between are passed over."""
    while True:
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError
        line.settimeout(left)
        data, ancillary, flags, _ = line.recvmsg(
            MAX_PACKET + 1, socket.CMSG_SPACE(4 * MAX_FDS), socket.MSG_CMSG_CLOEXEC
        )
        fds = _fds(ancillary)
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ProtocolError("the answer is too long, or carries too many fds")
            if not data:
                raise ConnectionResetError("hung up without an answer")
            packet = decode(data)
            if packet.re == re:
                return read(packet.message, fds)
            # What is fatal need not be an answer: an unreadable request has no number.
            if isinstance(packet.message, Refuse) and packet.message.fatal:
                raise Refused(packet.message.reason)
        finally:
            for fd in fds:
                os.close(fd)


def _fds(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return list(fds)


def _reason(path: str, error: OSError, timeout: float) -> str:
    match error:
        case FileNotFoundError():
            return "no such socket"
        case ConnectionRefusedError():
            return "nobody listens on this socket"
        case PermissionError():
            return f"permission denied; {_who_may(path)}"
        case TimeoutError() | BlockingIOError():
            return f"no answer in {timeout:g} s"
        case _:
            return error.strerror or str(error)


def _who_may(path: str) -> str:
    """Who can open the socket, in words, as far as we may see."""
    try:
        seen = os.stat(path)
    except OSError:
        return f"only who may enter {os.path.dirname(path) or '.'} can"
    allowed = [f"user {_name(pwd.getpwuid, seen.st_uid)}"]
    if seen.st_mode & stat.S_IWGRP:
        allowed.append(f"group {_name(grp.getgrgid, seen.st_gid)}")
    return f"{' and '.join(allowed)} may"


def _name(look_up: Callable[[int], Any], number: int) -> str:
    try:
        return str(look_up(number)[0])
    except KeyError:
        return str(number)
