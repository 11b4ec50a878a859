"""A small API server: one nodes collection, list and watch with resource versions, and faults."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any

from aiohttp import web

from tests.agent.notice.hearing import LIMIT

Node = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


def node_named(name: str) -> Node:
    """A node with the fields that real ones have and this source does not look at, too."""
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
            "managedFields": [{"manager": "kubelet", "operation": "Update"}],
        },
        "spec": {"providerID": f"x:///{name}"},
        "status": {
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "message": "enough"},
                {"type": "Ready", "status": "True", "message": "kubelet is posting ready status"},
            ],
            "images": [{"names": ["x" * 100], "sizeBytes": i} for i in range(50)],
        },
    }


class ApiServer:
    """What an API server answers about nodes.

    Attributes:
        nodes: As they are now; changed by `change` and `remove`.
        token: What a request has to carry.
        list_fault: Answers lists where it is set.
        watch_fault: Answers watches where it is set.
        bookmarks: Sent at once to every watch.
        oldest: Watches from before this version are answered 410.
    """

    def __init__(self, *names: str, token: str = "token-1") -> None:
        self.version = 100
        self.token = token
        self.nodes: dict[str, Node] = {name: node_named(name) for name in names}
        self.list_fault: Fault | None = None
        self.watch_fault: Fault | None = None
        self.bookmarks = False
        self.oldest = 0
        self.expire_by_event = False
        self.lists = 0
        self.watches = 0
        self.tokens: list[str] = []
        self.queries: list[dict[str, str]] = []
        self._log: list[tuple[int, str, Node]] = []
        self._ends = 0
        self._news = asyncio.Condition()
        self.app = web.Application()
        self.app.router.add_get("/api/v1/nodes", self._nodes)

    async def change(self, name: str, edit: Callable[[Node], None]) -> None:
        """Change one node, as somebody with kubectl does."""
        edit(self.nodes[name])
        await self._record("MODIFIED", self.nodes[name])

    async def remove(self, name: str) -> None:
        await self._record("DELETED", self.nodes.pop(name))

    async def end_watches(self) -> None:
        """End all running watches, as at their time-out."""
        async with self._news:
            self._ends += 1
            self._news.notify_all()

    async def until(self, *, lists: int = 0, watches: int = 0) -> None:
        """Wait until so many requests of each kind came."""
        async with asyncio.timeout(LIMIT), self._news:
            await self._news.wait_for(lambda: self.lists >= lists and self.watches >= watches)

    async def _record(self, kind: str, node: Node) -> None:
        async with self._news:
            self.version += 1
            node["metadata"]["resourceVersion"] = str(self.version)
            self._log.append((self.version, kind, deepcopy(node)))
            self._news.notify_all()

    async def _nodes(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") == "true"
        self.tokens.append(request.headers.getall("Authorization")[0])
        self.queries.append(dict(request.query))
        async with self._news:
            self.lists += not watch
            self.watches += watch
            self._news.notify_all()
        fault = self.watch_fault if watch else self.list_fault
        if fault is not None and (wrong := await fault(request)) is not None:
            return wrong
        if self.tokens[-1] != f"Bearer {self.token}":
            return status(401)
        field, _, name = request.query["fieldSelector"].partition("=")
        assert field == "metadata.name"
        if watch:
            return await self._watch(request, name)
        items = [each for key, each in self.nodes.items() if key == name]
        return web.json_response(
            {
                "kind": "NodeList",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": str(self.version)},
                "items": items,
            }
        )

    async def _watch(self, request: web.Request, name: str) -> web.StreamResponse:
        position = int(request.query["resourceVersion"])
        if position < self.oldest and not self.expire_by_event:
            return status(410)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        async def send(kind: str, thing: Node) -> None:
            line = json.dumps({"type": kind, "object": thing}) + "\n"
            # In two pieces: a line is no packet.
            await response.write(line[:7].encode())
            await response.write(line[7:].encode())

        if position < self.oldest:
            await send("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
            return response
        if self.bookmarks:
            bookmark = {"kind": "Node", "metadata": {"resourceVersion": str(self.version)}}
            await send("BOOKMARK", bookmark)
        ends = self._ends
        while self._ends == ends:
            for version, kind, node in list(self._log):
                if version > position:
                    position = version
                    if node["metadata"]["name"] == name:
                        await send(kind, node)
            async with self._news:
                await self._news.wait_for(
                    lambda: self._ends != ends or self.version > position  # noqa: B023 - now
                )
        return response


def status(code: int) -> web.Response:
    """A refusal as an API server words it."""
    return web.json_response({"kind": "Status", "status": "Failure", "code": code}, status=code)


def refusing(code: int) -> Fault:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return status(code)

    return refuse


def saying(raw: bytes, *, kind: str = "application/json") -> Fault:
    async def say(_: web.Request) -> web.StreamResponse:
        return web.Response(body=raw, content_type=kind)

    return say
