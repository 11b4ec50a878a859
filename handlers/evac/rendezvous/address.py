"""Where a job's nodes meet, as one line of text: ``tcpstore://10.0.0.7:29400/evac/my-run``. Pure.

The path is the prefix below which all keys of the job lie.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

TCPSTORE, ETCD, ETCD_TLS = "tcpstore", "etcd", "etcds"
# torchrun's own default for its c10d backend (torch/distributed/elastic/rendezvous/
# c10d_rendezvous_backend.py, read 2026-11); etcd's for clients.
PORTS = {TCPSTORE: 29400, ETCD: 2379, ETCD_TLS: 2379}
LONGEST = 512
_HOST = re.compile(r"[A-Za-z0-9_.:%-]{1,253}")


@dataclass(frozen=True)
class Address:
    """One job's place in one store."""

    scheme: str
    host: str
    port: int
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.endpoint}/{quote(self.prefix)}"

    @property
    def in_etcd(self) -> bool:
        """Whether the store is an etcd."""
        return self.scheme != TCPSTORE

    @property
    def endpoint(self) -> str:
        """``host:port``, as ``--rdzv-endpoint`` wants it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse(text: str) -> Address:
    """Read what `str` of an address gives.

    Raises:
        ValueError: It is none; says what was expected.
    """
    wrong = (
        "expected tcpstore://host:port/prefix, etcd://host:port/prefix or etcds://host:port/prefix, "
        f"got {text[:80]!r}"
    )
    if len(text) > LONGEST:
        raise ValueError(wrong)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(wrong) from error
    prefix = unquote(parts.path).strip("/")
    if parts.scheme not in PORTS or not host or not prefix or not _HOST.fullmatch(host):
        raise ValueError(wrong)
    if (
        parts.username
        or parts.password
        or parts.query
        or parts.fragment
        or not prefix.isprintable()
    ):
        raise ValueError(wrong)
    if port == 0:
        raise ValueError(wrong)
    return Address(parts.scheme, host, PORTS[parts.scheme] if port is None else port, prefix)


def split_endpoint(text: str, default_port: int) -> tuple[str, int]:
    """``host``, ``host:port``, ``[::1]:port`` or ``http://host:port`` in two.

    Raises:
        ValueError: It is none.
    """
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"expected host:port, got {text!r}") from error
    if not host:
        raise ValueError(f"expected host:port, got {text!r}")
    return host, default_port if port is None else port


def is_endpoint(text: str) -> bool:
    """Whether it is a host with a port that can be connected to."""
    try:
        host, port = split_endpoint(text, 0)
    except ValueError:
        return False
    return port > 0 and _HOST.fullmatch(host) is not None and "://" not in text


def prefix_of(run: str) -> str:
    """Below which keys the run of that id lies."""
    # One part of a path: all below is one job's, and is deleted as such.
    return f"evac/{quote(run, safe='')}"
