"""Two requests to the Kubernetes API server: this node's object now, and every change of it.

Plain aiohttp and not a client package: kubernetes_asyncio costs 37 MiB of RSS (measured, in a
daemon that has 60), and of what lightkube brings, one list and one watch need nothing.

Sources: kubernetes.io/docs/tasks/run-application/access-api-from-pod (address, token, CA) and
…/reference/using-api/api-concepts (list, watch, resourceVersion, 410, bookmarks). Read 2026-10.
"""

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import aiohttp

from evacd.notice.metadata import Failed
from evacd.notice.node.frames import (
    LINE_LIMIT,
    Bookmark,
    Changed,
    Deleted,
    Expired,
    Lines,
    Malformed,
    decode,
    name_of,
    parse_json,
    version_of,
)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_CURES = {
    401: "the service account's token is refused: is it projected into this pod, and fresh?",
    403: "grant evacd's service account get, list and watch on nodes (a ClusterRole)",
    404: "is this a Kubernetes API server?",
    429: "the API server is busy; asked again",
}
_BUSY = "the API server is in trouble; asked again"
_UNREACHABLE = "is the API server up? a network policy may block it; hostNetwork: true may help"
_FILES = "run in a pod with a service account, or name its token and CA file"


@dataclass(frozen=True)
class Access:
    """How to reach the API server.

    Attributes:
        url: ``https://ADDRESS:PORT``, by address: name services go down early.
        token_file: Read again for every request, because the kubelet rotates it.
        ca_file: What its certificate is checked against; read again as well.
    """

    url: str
    token_file: Path
    ca_file: Path


@dataclass(frozen=True)
class Limits:
    """How long things may take; all in seconds.

    Attributes:
        connect: To be connected, TLS included.
        read: From there to the end of a list.
        hold: How long the server is asked to keep a watch open; whole seconds.
        slack: What a watch may take beyond that.
    """

    connect: float = 2.0
    read: float = 5.0
    hold: float = 240.0
    slack: float = 10.0


@dataclass(frozen=True)
class Listed:
    """The node as it is now.

    Attributes:
        version: From where a watch goes on.
        date: The answer's `Date` header; "" where there is none.
    """

    node: object
    version: str
    date: str = ""


@dataclass(frozen=True)
class Ended:
    """The watch ended as it should; go on from the last version."""


WatchEnd: TypeAlias = Ended | Expired | Failed


def in_cluster(environ: Mapping[str, str], *, account: Path = SERVICE_ACCOUNT) -> Access | None:
    """The way that a pod has to its API server; None outside of a cluster.

    Args:
        account: Where the service account is mounted.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        return None
    try:
        shown = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        shown = host
    return Access(f"https://{shown}:{port}", account / "token", account / "ca.crt")


class NodeApi:
    """Asks about one node; what goes wrong comes back as `Failed`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        access: Access,
        node: str,
        *,
        limits: Limits | None = None,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            session: From `evacd.notice.metadata.open_session`: never through a proxy.
        """
        if session.trust_env:
            raise ValueError("the session must not trust the proxy environment")
        self._session = session
        self._access = access
        self._node = node
        self._limits = limits or Limits()
        self._trusted: tuple[bytes, ssl.SSLContext] | None = None

    async def get(self) -> Listed | Failed:
        """The node object, and the version to watch from."""
        limits = self._limits
        credentials = await asyncio.to_thread(self._credentials)
        if isinstance(credentials, Failed):
            return credentials
        try:
            async with self._request(credentials, {}, limits.connect + limits.read) as response:
                raw = bytearray()
                async for chunk in response.content.iter_any():
                    raw += chunk
                    if len(raw) > LINE_LIMIT:
                        response.close()
                        return Failed(f"the answer is over {LINE_LIMIT} bytes", _CURES[404])
                if response.status != 200:
                    return _refusal(response.status)
                return self._listed(parse_json(bytes(raw)), response.headers.get("Date", ""))
        except _ERRORS as error:
            return self._failed(error)

    async def watch(self, version: str, hear: Callable[[Changed | Bookmark], None]) -> WatchEnd:
        """Tell every change after *version* in the moment it arrives; says why it ended."""
        limits, lines = self._limits, Lines()
        credentials = await asyncio.to_thread(self._credentials)
        if isinstance(credentials, Failed):
            return credentials
        params = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(limits.hold))),
        }
        total = limits.connect + limits.hold + limits.slack
        try:
            async with self._request(credentials, params, total) as response:
                if response.status != 200:
                    return Expired() if response.status == 410 else _refusal(response.status)
                _keep_alive(response)
                async for chunk in response.content.iter_any():
                    for line in lines.feed(chunk):
                        frame = decode(line)
                        if not isinstance(frame, Changed | Bookmark):
                            response.close()
                            return _ended_by(frame)
                        if isinstance(frame, Bookmark) or name_of(frame.node) == self._node:
                            hear(frame)
        except _ERRORS as error:
            return self._failed(error)
        return Ended()

    def _credentials(self) -> tuple[str, ssl.SSLContext] | Failed:
        """Token and trust as the files are now; blocks for two small reads."""
        access = self._access
        try:
            token = access.token_file.read_bytes().strip().decode("ascii")
            ca = access.ca_file.read_bytes()
        except OSError as error:
            return Failed(f"{error.filename}: {error.strerror}", _FILES)
        except UnicodeDecodeError:
            token = ""
        if not token or not token.isprintable():
            return Failed(f"{access.token_file}: holds no token", _FILES)
        if self._trusted is None or self._trusted[0] != ca:
            try:
                context = ssl.create_default_context(cadata=ca.decode("ascii"))
            except (ssl.SSLError, ValueError):
                return Failed(f"{access.ca_file}: holds no certificate", _FILES)
            self._trusted = ca, context
        return token, self._trusted[1]

    def _request(
        self, credentials: tuple[str, ssl.SSLContext], params: Mapping[str, str], total: float
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        token, context = credentials
        return self._session.get(
            f"{self._access.url}/api/v1/nodes",
            params={"fieldSelector": f"metadata.name={self._node}", **params},
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            allow_redirects=False,
            ssl=context,
            timeout=aiohttp.ClientTimeout(
                total=total, connect=self._limits.connect, sock_connect=self._limits.connect
            ),
        )

    def _listed(self, found: object, date: str) -> Listed | Failed:
        items = found.get("items") if isinstance(found, Mapping) else None
        version = version_of(found)
        if not isinstance(items, list) or not version:
            return Failed("the answer is no list of nodes", _CURES[404])
        for item in items:
            if name_of(item) == self._node:
                return Listed(item, version, date)
        return Failed(
            f"there is no node {self._node}",
            "give evacd the node's name as Kubernetes has it (downward API: spec.nodeName)",
        )

    def _failed(self, error: Exception) -> Failed:
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return Failed(
                    "the API server's certificate is not to be trusted: "
                    f"{error.certificate_error.args[-1]}"[:160],
                    f"is {self._access.ca_file} this cluster's CA, and does the certificate "
                    f"name the address in {self._access.url}?",
                )
            case aiohttp.ClientConnectorSSLError():
                return Failed("no TLS with the API server", _UNREACHABLE)
            case aiohttp.ConnectionTimeoutError():
                limit = self._limits.connect
                return Failed(f"no connection within {limit:g} s", _UNREACHABLE)
            case TimeoutError():
                return Failed("no answer in time", _BUSY)
            case aiohttp.ClientConnectorError():
                number = error.os_error.errno
                why = os.strerror(number) if number and number > 0 else str(error.os_error)
                return Failed(f"no connection: {why}", _UNREACHABLE)
            case ValueError():
                return Failed(str(error), _CURES[404])
        return Failed(f"the connection broke: {type(error).__name__}", _BUSY)


_ERRORS = (aiohttp.ClientError, OSError, EOFError, ValueError)


def _ended_by(frame: Deleted | Expired | Malformed) -> WatchEnd:
    if isinstance(frame, Malformed):
        return Failed(frame.reason, _BUSY)
    # Whether the node is gone for good, the next list tells.
    return Expired()


def _refusal(status: int) -> Failed:
    return Failed(f"HTTP {status}", _CURES.get(status, _BUSY if status >= 500 else _CURES[404]))


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    """Have the kernel notice within 20 s that the other end of a silent watch is gone."""
    connection = response.connection
    transport = connection.transport if connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
