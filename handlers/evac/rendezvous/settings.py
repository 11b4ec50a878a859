"""What torchrun was told: ``--rdzv-endpoint``, ``--rdzv-id``, ``--nnodes``, ``--rdzv-conf``."""

import logging
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from evac.admin import read_status
from evac.errors import EvacError
from evac.rendezvous.address import (
    ETCD,
    ETCD_TLS,
    PORTS,
    TCPSTORE,
    Address,
    prefix_of,
    split_endpoint,
)
from evac.rendezvous.etcd_access import NO_FILES, EtcdFiles
from evac.rendezvous.etcd_calls import KEEP_SECONDS

logger = logging.getLogger("evac")

OPTIONS = (
    "store", "protocol", "ca_cert", "ssl_cert", "ssl_cert_key", "user", "password_file", "keep_timeout",
    "is_host", "node", "boot", "join_timeout", "last_call_timeout", "confirm_timeout", "return_timeout",
    "connect_timeout", "meet_timeout", "keep_alive_interval", "keep_alive_max_attempt",
)  # fmt: skip
# Above it a word is one of ours with a slip; torch's own options (timeout, rank) lie below.
_ALIKE = 0.8
_SOCKET = "/run/evac/evacd.sock"
_BOOT = "/proc/sys/kernel/random/boot_id"


class Parameters(Protocol):
    """As much of torch's `RendezvousParameters` as is read here."""

    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    config: dict[str, Any]

    def get(self, key: str, default: object = None) -> object:
        """One option of ``--rdzv-conf``."""
        ...


@dataclass(frozen=True)
class Settings:
    """One agent's. ``--rdzv-conf`` takes those that are marked.

    Attributes:
        address: Where the nodes meet. [``store=tcpstore`` or ``etcd``, and that over TLS with
            ``protocol=https``, or an endpoint that begins so]
        etcd: What etcd is shown. [``ca_cert``, ``ssl_cert``, ``ssl_cert_key``, as torch's own backend
            for etcd calls them; ``user``, ``password_file``]
        keep_seconds: That an etcd keeps the keys of a job of which nobody is left. [``keep_timeout``]
        hosts: Serve the store from this agent: always, never, or None: if the endpoint is of
            this machine and nobody serves it yet. [``is_host``]
        local: Address of this machine for the others.
        node: As evacd calls this machine. [``node``, else evacd's own word, else the host name]
        boot: Kernel boot id. [``boot``, likewise]
        join_seconds: That a round may take to form while no other runs, and that whoever waits
            for one does without the store. [``join_timeout``]
        call_seconds: That the first round waits for more than the minimum. [``last_call_timeout``]
        confirm_seconds: That a round may take from when all are there until all have reached its first
            rank; then it is formed anew, another node first or without who has not. [``confirm_timeout``]
        return_seconds: That a new log in this agent's own store waits for word that the job has one
            elsewhere, since this address was served the last time. [``return_timeout``]
        connect_seconds: That the store may take to answer at first. [``connect_timeout``]
        socket: evacd's, for workloads. [``EVAC_SOCKET``]
        meet_seconds: That an agent waits for the others before it stops its workers.
            [``meet_timeout``]
        beat_seconds: Between two signs of life. [``keep_alive_interval``]
        dead_seconds: Without one until an agent counts as gone. [that times
            ``keep_alive_max_attempt``]
    """

    address: Address
    run: str
    minimum: int
    maximum: int
    hosts: bool | None
    local: str
    node: str
    boot: str
    socket: str = _SOCKET
    join_seconds: float = 600.0
    call_seconds: float = 30.0
    confirm_seconds: float = 60.0
    return_seconds: float = 2.0
    connect_seconds: float = 60.0
    meet_seconds: float = 5.0
    beat_seconds: float = 5.0
    dead_seconds: float = 15.0
    etcd: EtcdFiles = NO_FILES
    keep_seconds: float = KEEP_SECONDS


def read_settings(parameters: Parameters) -> Settings:
    """Read and check.

    Raises:
        ValueError: One is wrong; says what was expected.
    """
    for given, meant in mistyped(parameters.config):
        logger.warning("--rdzv-conf %s: read by nobody; is %s meant?", given, meant)
    scheme = _scheme(parameters)
    if not parameters.endpoint:
        raise ValueError("--rdzv-endpoint: expected host:port of the job's rendezvous store")
    host, port = split_endpoint(parameters.endpoint, PORTS[scheme])
    node, boot = _identity(parameters)
    beat = _seconds(parameters, "keep_alive_interval", 5.0)
    attempts = _seconds(parameters, "keep_alive_max_attempt", 3.0)
    return Settings(
        address=Address(scheme, host, port, prefix_of(parameters.run_id)),
        run=parameters.run_id,
        minimum=parameters.min_nodes,
        maximum=parameters.max_nodes,
        hosts=_hosts(parameters),
        local=parameters.local_addr or socket.getfqdn(),
        node=node,
        boot=boot,
        socket=os.environ.get("EVAC_SOCKET") or _SOCKET,
        join_seconds=_seconds(parameters, "join_timeout", 600.0),
        call_seconds=_seconds(parameters, "last_call_timeout", 30.0),
        confirm_seconds=_seconds(parameters, "confirm_timeout", 60.0),
        return_seconds=_seconds(parameters, "return_timeout", 2.0),
        connect_seconds=_seconds(parameters, "connect_timeout", 60.0),
        meet_seconds=_seconds(parameters, "meet_timeout", 5.0),
        beat_seconds=beat,
        dead_seconds=beat * attempts,
        etcd=_etcd_files(parameters, scheme),
        keep_seconds=_keep_seconds(parameters, beat * attempts),
    )


def mistyped(given: Iterable[str]) -> list[tuple[str, str]]:
    """Which options are none of ours, but nearly, and what was meant."""
    unknown = [name for name in given if name not in OPTIONS]
    near = [(name, get_close_matches(name, OPTIONS, n=1, cutoff=_ALIKE)) for name in unknown]
    return [(name, meant[0]) for name, meant in near if meant]


def is_local(host: str) -> bool:
    """Whether *host* is an address of this machine: only those can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as asked:
                asked.bind(address)
                return True
        except OSError:
            continue
    return False


def _scheme(parameters: Parameters) -> str:
    store = str(parameters.get("store") or TCPSTORE)
    if store not in (TCPSTORE, ETCD):
        raise ValueError(f"--rdzv-conf store: expected {TCPSTORE} or {ETCD}, got {store!r}")
    said = str(parameters.get("protocol") or "").strip().lower()
    if said not in ("", "http", "https"):
        raise ValueError(f"--rdzv-conf protocol: expected http or https, got {said!r}")
    begins = parameters.endpoint.partition("://")[0] if "://" in parameters.endpoint else ""
    if said and begins and said != begins:
        raise ValueError(f"--rdzv-conf protocol: {said}, but --rdzv-endpoint begins with {begins}")
    if "https" not in (said, begins):
        return store
    if store != ETCD:
        raise ValueError("--rdzv-conf protocol: torch's TCPStore has no https; store=etcd has")
    return ETCD_TLS


def _etcd_files(parameters: Parameters, scheme: str) -> EtcdFiles:
    names = ("ca_cert", "ssl_cert", "ssl_cert_key", "user", "password_file")
    given = {name: str(parameters.get(name) or "") for name in names}
    used = [name for name, value in given.items() if value]
    if used and scheme == TCPSTORE:
        raise ValueError(f"--rdzv-conf {used[0]}: torch's TCPStore takes none; store=etcd does")
    of_tls = [name for name in used if name in names[:3]]
    if of_tls and scheme != ETCD_TLS:
        raise ValueError(f"--rdzv-conf {of_tls[0]}: is for protocol=https")
    for one, other in (("ssl_cert", "ssl_cert_key"), ("user", "password_file")):
        if bool(given[one]) != bool(given[other]):
            raise ValueError(f"--rdzv-conf {one}, {other}: expected both, or neither")
    return EtcdFiles(*(given[name] for name in names))


def _keep_seconds(parameters: Parameters, least: float) -> float:
    # Nobody's keys may go while they live, however slow a store or an agent is for once.
    keep, least = _seconds(parameters, "keep_timeout", KEEP_SECONDS), max(2 * least, 2.0)
    if keep < least:
        raise ValueError(f"--rdzv-conf keep_timeout: expected {least:g} or more, got {keep:g}")
    return keep


def _hosts(parameters: Parameters) -> bool | None:
    given = parameters.get("is_host")
    if given is None:
        return None
    word = str(given).lower()
    if word in ("1", "true", "t", "yes", "y"):
        return True
    if word in ("0", "false", "f", "no", "n"):
        return False
    raise ValueError(f"--rdzv-conf is_host: expected true or false, got {given!r}")


def _seconds(parameters: Parameters, name: str, default: float) -> float:
    given = parameters.get(name)
    if given is None:
        return default
    try:
        value = float(str(given))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ValueError(f"--rdzv-conf {name}: expected a number, 0 or more, got {given!r}")
    return value


def _identity(
    parameters: Parameters, ask: Callable[[], tuple[str, str]] | None = None
) -> tuple[str, str]:
    """Node and boot as evacd announces them: in a container the host's name is another."""
    node, boot = str(parameters.get("node") or ""), str(parameters.get("boot") or "")
    if node and boot:
        return node, boot
    said = (ask or _ask_evacd)()
    return node or said[0] or socket.gethostname(), boot or said[1] or _boot_id()


def _ask_evacd() -> tuple[str, str]:
    try:
        status = read_status(os.environ.get("EVAC_SOCKET") or _SOCKET, timeout=2.0)
        return str(status["node"]), str(status["boot"])
    except (EvacError, OSError, KeyError):
        return "", ""


def _boot_id() -> str:
    try:
        with open(_BOOT) as file:
            return file.read().strip()
    except OSError:
        return ""
