"""Which of a job's peers are other nodes: a job names all of its nodes, the same list on each. Pure."""

from collections.abc import Collection, Iterable


def others(addresses: Iterable[str], *, names: Collection[str], listen: str) -> tuple[str, ...]:
    """Those of *addresses* (``host:port``) that are not this node.

    Args:
        names: What this node goes by, its addresses included.
        listen: Address and port at which it takes bytes for others; "" where it takes none.
    """
    port = listen.rpartition(":")[2]
    found = []
    for address in dict.fromkeys(addresses):
        host, _, at = address.rpartition(":")
        if not (listen and at == port and host.strip("[]") in names):
            found.append(address)
    return tuple(found)
