"""Whether it is the daemon that listens: what is staged is handed to it, slot by slot.

Who can write the socket's folder can put a socket of its own there. The kernel tells who called
listen(2) (unix(7), SO_PEERCRED, read 2026-11).
"""

import os
import socket
import struct
from collections.abc import Mapping

_CREDENTIALS = struct.Struct("3i")
# A uid that has no number in this user namespace shows as this (user_namespaces(7)).
_OVERFLOW = 65534
# uid_map of a namespace that has every uid as itself: the machine's first one.
_WHOLE = ("0", "0", "4294967295")


def impostor(sock: socket.socket, environment: Mapping[str, str]) -> str:
    """Why the other end of a connected socket is not to be trusted; "" where it is.

    Trusted are root, who one is oneself, and the uid in ``EVAC_DAEMON_UID``. In a user namespace
    the machine's root may have no number: there, who has none is trusted, too.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    named = environment.get("EVAC_DAEMON_UID", "")
    if uid in (0, os.geteuid()) or named == str(uid) or (uid == _OVERFLOW and _mapped()):
        return ""
    return f"uid {uid} listens there and not evacd; if evacd runs as it, set EVAC_DAEMON_UID={uid}"


def _mapped() -> bool:
    try:
        with open("/proc/self/uid_map") as file:
            return tuple(file.read().split()) != _WHOLE
    except OSError:
        return False
