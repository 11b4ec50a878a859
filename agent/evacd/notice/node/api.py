"""Two requests to the Kubernetes API server: this node's object now, and every change of it.

Source: kubernetes.io/docs/reference/using-api/api-concepts (list, watch, resourceVersion, 410,
bookmarks). Read 2026-10.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import aiohttp

from evacd.kube.access import Access
from evacd.kube.client import BUSY, ERRORS, Client, Failed, Limits, refusal
from evacd.notice.node.frames import (
    Bookmark,
    Changed,
    Deleted,
    Expired,
    Lines,
    Malformed,
    decode,
    name_of,
    version_of,
)

_NODES = "/api/v1/nodes"


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
        self._client = Client(session, access, limits=limits)
        self._node = node
        self._one = {"fieldSelector": f"metadata.name={node}"}

    async def get(self) -> Listed | Failed:
        """The node object, and the version to watch from."""
        answer = await self._client.ask("GET", _NODES, params=self._one)
        if isinstance(answer, Failed):
            return answer
        return self._listed(answer.document, answer.date)

    async def watch(self, version: str, hear: Callable[[Changed | Bookmark], None]) -> WatchEnd:
        """Tell every change after *version* in the moment it arrives; says why it ended."""
        limits, lines = self._client.limits, Lines()
        credentials = await self._client.credentials()
        if isinstance(credentials, Failed):
            return credentials
        params = {
            **self._one,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(limits.hold))),
        }
        total = limits.connect + limits.hold + limits.slack
        now = asyncio.get_running_loop().time
        # A server begins a watch at once; one that takes it and says nothing tells no change.
        silence, begun = asyncio.timeout(limits.connect + limits.read), False
        try:
            async with (
                silence,
                self._client.request(credentials, "GET", _NODES, params, total) as response,
            ):
                begun = response.status == 200
                silence.reschedule(now() + limits.quiet)
                if response.status != 200:
                    return Expired() if response.status == 410 else refusal(response.status)
                _keep_alive(response)
                async for chunk in response.content.iter_any():
                    silence.reschedule(now() + limits.quiet)
                    for line in lines.feed(chunk):
                        frame = decode(line)
                        if not isinstance(frame, Changed | Bookmark):
                            response.close()
                            return _ended_by(frame)
                        if isinstance(frame, Bookmark) or name_of(frame.node) == self._node:
                            hear(frame)
        except ERRORS as error:
            # The next one begins where this one was last heard of, and misses nothing.
            return Ended() if begun and silence.expired() else self._client.failed(error)
        return Ended()

    def _listed(self, found: object, date: str) -> Listed | Failed:
        items = found.get("items") if isinstance(found, Mapping) else None
        version = version_of(found)
        if not isinstance(items, list) or not version:
            return Failed("the answer is no list of nodes", refusal(404).cure)
        for item in items:
            if name_of(item) == self._node:
                return Listed(item, version, date)
        return Failed(
            f"there is no node {self._node}",
            "give evacd the node's name as Kubernetes has it (downward API: spec.nodeName)",
        )


def _ended_by(frame: Deleted | Expired | Malformed) -> WatchEnd:
    if isinstance(frame, Malformed):
        return Failed(frame.reason, BUSY)
    # Whether the node is gone for good, the next list tells.
    return Expired()


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
