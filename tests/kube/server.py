"""An API server for tests: what kubectl, helm and evacd ask of one, over real HTTP.

It stores objects with versions and refuses with 409 who comes too late, applies every kind of
patch, lists and watches, evicts as disruption budgets allow, and asks RBAC and admission
policies by the objects that are stored in it. Faults are put in at will. Nothing runs in it: no
scheduler, no kubelet, and of the controllers only what taints a cordoned node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.kube import discovery
from tests.kube.access import User, Wanted, denied
from tests.kube.answers import Refusal, status
from tests.kube.discovery import NODES, RESOURCES, Resource
from tests.kube.patches import BadPatch
from tests.kube.storage import Conflict, Object, Storage
from tests.kube.verbs import Handler

CORDONED = "node.kubernetes.io/unschedulable"


@dataclass
class Fault:
    """What goes wrong with requests that are like this, so many times.

    Attributes:
        status: Answered in place of the truth; 0: only slow; -1: the connection is cut.
        slow: Seconds before that.
        after: The request is carried out, and then answered so.
        together: Held until so many of them are under way at once.
        half: Half of the true answer comes, and then nothing more.
    """

    method: str = ""
    path: str = ""
    status: int = 0
    slow: float = 0.0
    times: int = 1_000_000
    after: bool = False
    retry_after: int = 0
    together: asyncio.Barrier | None = None
    half: bool = False


@dataclass(frozen=True)
class Asked:
    """One request, as it came.

    Attributes:
        at: Seconds on the system's monotonic clock, which all processes share.
    """

    method: str
    path: str
    kind: str
    user: str
    at: float


class Kube:
    """One API server and all it knows.

    Attributes:
        between: Called between a patch's look at the object and its writing: somebody is faster.
        mutate: Makes of each changed object what is stored, as a mutating webhook does.
    """

    def __init__(self, tokens: Mapping[str, User]) -> None:
        self.storage = Storage()
        self.tokens = dict(tokens)
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.between: Callable[[], Awaitable[None]] | None = None
        self.mutate: Callable[[Object], Object] = lambda thing: thing
        self.ends = asyncio.Event()
        self.app = web.Application(middlewares=[self._guard], client_max_size=8 * 2**20)
        self.app.router.add_get("/version", _version)
        self.app.router.add_get("/api", _api)
        self.app.router.add_get("/apis", _groups)
        self.app.router.add_get("/openapi/v3", _openapi)
        self.app.router.add_get("/openapi/v3/{group:.+}", _openapi_of)
        self.app.router.add_get("/api/{version:v1}", _resources)
        self.app.router.add_get("/apis/{version:[^/]+/[^/]+}", _resources)
        for each in RESOURCES:
            self._route(each)

    def _route(self, resource: Resource) -> None:
        handler = Handler(self, resource)
        router, base, plural = self.app.router, resource.base, resource.plural
        spots = [f"{base}/{plural}"]
        if resource.namespaced:
            router.add_get(f"{base}/{plural}", handler.list)
            spots = [f"{base}/namespaces/{{namespace}}/{plural}"]
        for spot in spots:
            router.add_get(spot, handler.list)
            router.add_post(spot, handler.create)
            router.add_get(f"{spot}/{{name}}", handler.get)
            router.add_put(f"{spot}/{{name}}", handler.change)
            router.add_patch(f"{spot}/{{name}}", handler.change)
            router.add_delete(f"{spot}/{{name}}", handler.delete)
            if "status" in resource.subresources:
                router.add_get(f"{spot}/{{name}}/{{below:status}}", handler.get)
                router.add_patch(f"{spot}/{{name}}/{{below:status}}", handler.change)
                router.add_put(f"{spot}/{{name}}/{{below:status}}", handler.change)
            if "eviction" in resource.subresources:
                router.add_post(f"{spot}/{{name}}/{{below:eviction}}", handler.evict)

    def end_watches(self) -> None:
        """End all running watches, as at their time-out."""
        self.ends.set()
        self.ends = asyncio.Event()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        user = self.tokens.get(token)
        self.asked.append(
            Asked(
                request.method,
                request.path,
                request.content_type,
                user.name if user else "",
                asyncio.get_running_loop().time(),
            )
        )
        for fault in self.faults if request.path != "/tests" else ():
            like = fault.method in ("", request.method) and fault.path in request.path
            if like and fault.times > 0:
                fault.times -= 1
                return await self._fail(fault, request, handler, user)
        return await self._answer(request, handler, user)

    async def _answer(
        self, request: web.Request, handler: Any, user: User | None
    ) -> web.StreamResponse:
        if user is None:
            return status(401, "Unauthorized", "Unauthorized")
        request["user"] = user
        try:
            answer: web.StreamResponse = await handler(request)
        except Refusal as refusal:
            return status(refusal.code, refusal.reason, str(refusal))
        except Conflict as conflict:
            return status(409, conflict.reason, str(conflict))
        except BadPatch as error:
            return status(422, "Invalid", str(error))
        except web.HTTPNotFound:
            return status(404, "NotFound", "the server could not find the requested resource")
        return answer

    async def _fail(
        self, fault: Fault, request: web.Request, handler: Any, user: User | None
    ) -> web.StreamResponse:
        if fault.together is not None:
            await fault.together.wait()
        if fault.slow:
            await asyncio.sleep(fault.slow)
        if fault.after or fault.status == 0:
            answer = await self._answer(request, handler, user)
            if fault.half:
                return await _half(request, answer)
            if fault.status == 0:
                return answer
        if fault.status == -1:
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionResetError
        answer = status(fault.status, "InternalError", "put in by a test")
        if fault.retry_after:
            answer.headers["Retry-After"] = str(fault.retry_after)
        return answer

    async def admit(
        self, request: web.Request, wanted: Wanted, new: Object | None, old: Object | None
    ) -> None:
        """Raise `Refusal` where a policy denies it."""
        if why := denied(self.storage, request["user"], wanted, new=new, old=old):
            raise Refusal(422, "Invalid", f'{wanted.full} "{wanted.name}" is forbidden: {why}')

    async def taint_cordoned(self, node: Object) -> None:
        """What the node lifecycle controller does, a moment after the cordon."""
        cordoned = node["spec"].get("unschedulable") is True
        taints = node["spec"].get("taints") or []
        marked = any(each["key"] == CORDONED for each in taints)
        if cordoned is marked:
            return

        def change(now: Object) -> Object:
            left = [each for each in now["spec"].get("taints") or [] if each["key"] != CORDONED]
            if cordoned:
                left.append({"key": CORDONED, "effect": "NoSchedule"})
            now["spec"]["taints"] = left
            now["metadata"].pop("resourceVersion")
            return now

        await self.storage.change(NODES, "", node["metadata"]["name"], change)


async def _half(request: web.Request, whole: web.StreamResponse) -> web.StreamResponse:
    """The first half of it, under the length of all of it."""
    assert isinstance(whole, web.Response)
    assert isinstance(whole.body, bytes)
    headers = {"Content-Type": "application/json", "Content-Length": str(len(whole.body))}
    answer = web.StreamResponse(status=whole.status, headers=headers)
    await answer.prepare(request)
    await answer.write(whole.body[: len(whole.body) // 2])
    await asyncio.Event().wait()
    return answer


async def _version(_: web.Request) -> web.Response:
    return web.json_response(discovery.VERSION)


async def _groups(_: web.Request) -> web.Response:
    return web.json_response(discovery.groups())


async def _api(_: web.Request) -> web.Response:
    return web.json_response({"kind": "APIVersions", "versions": ["v1"]})


async def _resources(request: web.Request) -> web.Response:
    found = discovery.resources(request.match_info["version"])
    if found is None:
        raise web.HTTPNotFound
    return web.json_response(found)


async def _openapi(_: web.Request) -> web.Response:
    bases = {each.base.lstrip("/") for each in RESOURCES}
    paths = {base: {"serverRelativeURL": f"/openapi/v3/{base}"} for base in sorted(bases)}
    return web.json_response({"paths": paths})


async def _openapi_of(request: web.Request) -> web.Response:
    base = request.match_info["group"].removeprefix("apis/").removeprefix("api/")
    return web.json_response(discovery.openapi(base))
