"""The daemon's own account of its node, asked for over a workload's connection."""

from typing import Any

from evac._connection import Connection
from evac._memory import read_answer
from evac.errors import NotConnected, ProtocolError, Refused
from evac.wire import AskStatus, Message, Refuse, Status


def ask_status(connection: Connection, timeout: float) -> dict[str, Any]:
    """See `Client.status`."""
    got: list[dict[str, Any] | ProtocolError | Refused] = []
    changed = connection.changed

    def hear(message: Message | None, fd: int | None) -> None:
        with changed:
            if isinstance(message, Status) and fd is not None:
                try:
                    got.append(read_answer(fd, message.nbytes))
                except ProtocolError as error:
                    got.append(error)
            elif isinstance(message, Refuse):
                got.append(Refused(message.reason))
            changed.notify_all()

    if not connection.post(AskStatus(), hear):
        raise connection.missing()
    with changed:
        changed.wait_for(lambda: bool(got) or not connection.ready, timeout)
    if not got and connection.ready:
        raise NotConnected(connection.path, f"no answer to status in {timeout:g} s")
    if not got:
        raise connection.missing()
    if isinstance(got[0], Exception):
        raise got[0]
    return got[0]
