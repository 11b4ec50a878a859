"""Lets the kernel give up a connection whose other end is silent: a machine that is cut off says no good-bye.

A read that has no end of its own would else last for ever where nothing was sent, and some 15 minutes
where something was (tcp(7): tcp_keepalive_time and tcp_retries2). torch does not hand out the sockets of its
store: those are found among the files of this process, by what they are connected to. Turned down: waits
that end by themselves, after which torch's client waits, without an end, for the store to say that it has
heard so; and a client of our own for a protocol that is torch's.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from socket import AF_INET, AF_INET6

# More the kernel does not take (net/ipv4/tcp.c: MAX_TCP_KEEPIDLE; an int).
_LONGEST_PAUSE, _LONGEST_MS = 32767, 2**31 - 1


def bound(line: socket.socket, seconds: float) -> None:
    """Give *line* up once its other end has not answered the kernel for *seconds* (at least 2)."""
    probes = 3
    pause = min(max(int(seconds / (probes + 1)), 1), _LONGEST_PAUSE)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    # The limit where something is under way, and also for the probes.
    line.setsockopt(
        socket.IPPROTO_TCP,
        socket.TCP_USER_TIMEOUT,
        min(max(int(seconds * 1000), 2000), _LONGEST_MS),
    )


def bound_all(host: str, port: int, seconds: float) -> int:
    """The same for every connection of this process to *host* and *port*; how many those are."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return 0
    wanted = {_plain(str(address[0])) for *_, address in found}
    count = 0
    for line in _lines():
        with line, suppress(OSError):
            there, its_port = line.getpeername()[:2]
            if its_port == port and _plain(there) in wanted:
                bound(line, seconds)
                count += 1
    return count


def _lines() -> Iterator[socket.socket]:
    """All TCP sockets of this process, in copies."""
    if socket.getdefaulttimeout() is not None:
        return  # a copy would not block any more, and neither would its original
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            copy = os.dup(int(number))
            try:
                line = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            if line.type == socket.SOCK_STREAM and line.family in (AF_INET, AF_INET6):
                yield line
            else:
                line.close()


def _plain(address: str) -> str:
    """Without its interface, and as IPv4 where it is that in IPv6's clothes."""
    ip = ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return str(mapped or ip)
