"""What systemd is told: sd_notify(3), in plain datagrams.

https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html, read 2026-11.
"""

import os
import socket
from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"


def extend(seconds: float) -> str:
    """The line that asks for so much time more, from now on, until the stop that is under way ends."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def status(text: str) -> str:
    """The line that shows *text* in ``systemctl status``."""
    return "STATUS=" + " ".join(text.split())


def notify(state: str, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell the service manager; silently nothing where there is none.

    Args:
        state: One or more assignments, a line each: ``READY=1``, ``STATUS=listening``.

    Returns:
        Whether it was told.
    """
    address = address_of(environ)
    if address is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        # A manager that does not read must not stop us; the next word will tell it.
        sender.setblocking(False)
        try:
            sender.sendto(state.encode(), address)
        except OSError:
            return False
    return True


def address_of(environ: Mapping[str, str]) -> str | None:
    """Where the service manager listens; None where there is none."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    # Linux' abstract sockets: the name begins with a zero byte.
    return "\0" + address[1:] if address.startswith("@") else address


def watchdog_seconds(*, environ: Mapping[str, str] = os.environ) -> float | None:
    """How often, at least, ``WATCHDOG=1`` is expected; None where it is not.

    Send it twice as often.
    """
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = environ.get("WATCHDOG_USEC", "")
    if not (microseconds.isascii() and microseconds.isdigit()) or int(microseconds) == 0:
        return None
    return int(microseconds) / 1e6
