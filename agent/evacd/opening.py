"""Opens what the settings name before anything is started: whoever starts it is still looking."""

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeAlias

import psutil

from evac.errors import ConfigError
from evac.store import Owner, Store, open_store
from evac.store.location import is_of_peers
from evac.store.peer_group import PeerGroup
from evacd.config import Config, without_secrets
from evacd.peer import PeerSettings
from evacd.peer.others import others

Peers: TypeAlias = Callable[[str], Sequence[str]]

# Less could be guessed by whoever has overheard one handshake.
_TOKEN_NBYTES = 16


def open_targets(config: Config, peers: Peers) -> Mapping[str, Store]:
    """The store behind each target; no byte goes there yet.

    Args:
        peers: See `open_target`.

    Raises:
        ConfigError: A URL is of no kind that works here.
    """
    return {url: _store(config, url, peers) for url in config.store.targets}


def open_target(url: str, owner: Owner | None = None, *, peers: Peers) -> Store:
    """The store behind one target.

    Args:
        peers: Who may keep what belongs under a key, for ``evac://job``.

    Raises:
        ConfigError: A URL is of no kind that works here.
    """
    if is_of_peers(url):
        everybody = peers.registered if isinstance(peers, OtherPeers) else None
        return PeerGroup.from_url(url, peers, everybody, hurried=True)
    return open_store(url, owner=owner)


@dataclass(frozen=True)
class OtherPeers:
    """Who may take what belongs under a key: those registered, this node left out.

    Attributes:
        registered: As jobs name them. This node itself may have what another has put here.
        names: What this node goes by.
        listen: Where it takes bytes for others.
    """

    registered: Peers
    names: Collection[str]
    listen: str

    def __call__(self, key: str) -> Sequence[str]:
        """Their addresses."""
        return others(self.registered(key), names=self.names, listen=self.listen)


def other_peers(config: Config, node: str, registered: Peers) -> OtherPeers:
    """The same, with what this machine knows of itself."""
    names = {node, socket.gethostname(), "localhost"}
    names |= {one.address for some in psutil.net_if_addrs().values() for one in some}
    return OtherPeers(registered, names, config.peer.listen)


def read_peer_token(config: Config) -> bytes:
    """What opens this node's memory to other nodes; empty where nothing is asked for.

    Raises:
        ConfigError: Its file cannot be read or holds too little, or there is none though anybody on the
            network could come.
    """
    key, path = "peer.token_file", config.peer.token_file
    if path is None:
        host, _ = peer_address(config.peer.listen)
        if ip_address(host).is_loopback:
            return b""
        expected = (
            f"a file with a token, the same on all nodes: whoever reaches {config.peer.listen} could "
            "read and write all jobs' state; without one only a loopback address is listened on"
        )
        raise ConfigError(config.origins.get("peer.listen", "peer.listen"), key, expected)
    where = config.origins.get(key, str(path))
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        expected = f"a file that can be read ({path}: {error.strerror or error})"
        raise ConfigError(where, key, expected) from error
    if len(token) < _TOKEN_NBYTES:
        expected = f"{_TOKEN_NBYTES} bytes or more, such as `openssl rand -hex 32` makes ({path})"
        raise ConfigError(where, key, expected)
    return token


def open_peer(config: Config) -> PeerSettings | None:
    """How other nodes are served; None where they are not.

    Raises:
        ConfigError: See `read_peer_token`.
    """
    peer = config.peer
    if not peer.listen:
        return None
    token = read_peer_token(config)
    host, port = peer_address(peer.listen)
    budget = peer.budget.resolve(psutil.virtual_memory().available)
    return PeerSettings(host, port, token, budget, peer.keep_seconds, peer.connections)


def peer_address(listen: str) -> tuple[str, int]:
    """Host and port of what the settings hold: ``[::1]:9912`` is ``("::1", 9912)``."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def _store(config: Config, url: str, peers: Peers) -> Store:
    try:
        return open_target(url, peers=peers)
    except ConfigError as error:
        # Its own words may repeat the URL, and with it a password.
        key, expected = "store.targets", f"{error.expected} (for {without_secrets(url)})"
        raise ConfigError(config.origins.get(key, "--store"), key, expected) from error
