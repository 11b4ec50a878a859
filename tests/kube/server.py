"""An API server for tests: what kubectl, helm and evacd ask of one, over real HTTP.

It stores objects with versions and refuses with 409 who comes too late, applies every kind of
patch, lists and watches, evicts as disruption budgets allow, and asks RBAC and admission
policies by the objects that are stored in it. Faults are put in at will. Nothing runs in it: no
scheduler, no kubelet, and of the controllers only what taints a cordoned node.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it ships none
import yaml
from aiohttp import web

from tests.kube import discovery, protobuf
from tests.kube.access import User, Wanted, allowed, denied
from tests.kube.discovery import BUDGETS, EVENTS, NODES, PODS, RESOURCES, SECRETS, Resource
from tests.kube.patches import BadPatch, json_patch, merge, strategic
from tests.kube.selectors import fielded, labelled
from tests.kube.storage import Conflict, Object, Storage

SCHEMAS = "1.35"
CORDONED = "node.kubernetes.io/unschedulable"


@dataclass
class Fault:
    """What goes wrong with requests that are like this, so many times.

    Attributes:
        status: Answered in place of the truth; 0: only slow; -1: the connection is cut.
        slow: Seconds before that.
        after: The request is carried out, and then answered so.
    """

    method: str = ""
    path: str = ""
    status: int = 0
    slow: float = 0.0
    times: int = 1_000_000
    after: bool = False
    retry_after: int = 0


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
        self._ends = asyncio.Event()
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
        handler = _Handler(self, resource)
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
                router.add_patch(f"{spot}/{{name}}/{{below:status}}", handler.change)
                router.add_put(f"{spot}/{{name}}/{{below:status}}", handler.change)
            if "eviction" in resource.subresources:
                router.add_post(f"{spot}/{{name}}/{{below:eviction}}", handler.evict)

    def end_watches(self) -> None:
        """End all running watches, as at their time-out."""
        self._ends.set()
        self._ends = asyncio.Event()

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
        if fault.slow:
            await asyncio.sleep(fault.slow)
        if fault.after or fault.status == 0:
            answer = await self._answer(request, handler, user)
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


class Refusal(Exception):
    """Answered in place of what was asked for."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class _Handler:
    """All verbs of one kind."""

    def __init__(self, kube: Kube, resource: Resource) -> None:
        self._kube = kube
        self._storage = kube.storage
        self._resource = resource

    async def list(self, request: web.Request) -> web.StreamResponse:
        namespace = request.match_info.get("namespace", "")
        watching = request.query.get("watch") in ("true", "1")
        self._may(request, "watch" if watching else "list")
        if watching:
            return await self._watch(request, namespace)
        items = [
            each for each in self._storage.list(self._resource, namespace) if _wanted(request, each)
        ]
        return _json(
            {
                "kind": f"{self._resource.kind}List",
                "apiVersion": self._resource.group_version,
                "metadata": {"resourceVersion": str(self._storage.version)},
                "items": items,
            }
        )

    async def _watch(self, request: web.Request, namespace: str) -> web.StreamResponse:
        position = int(request.query.get("resourceVersion") or self._storage.version)
        ends = self._kube._ends
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with suppress(TimeoutError):
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "1800"))):
                while not ends.is_set():
                    for change in [each for each in self._storage.log if each.version > position]:
                        position = change.version
                        of = change.object["metadata"].get("namespace", "")
                        if (
                            change.resource is self._resource
                            and namespace in ("", of)
                            and _wanted(request, change.object)
                        ):
                            line = {"type": change.kind, "object": change.object}
                            await response.write(json.dumps(line).encode() + b"\n")
                    async with self._storage.news:
                        if self._storage.version == position:
                            await self._storage.news.wait()
        return response

    async def get(self, request: web.Request) -> web.Response:
        self._may(request, "get")
        return _json(self._found(request))

    async def create(self, request: web.Request) -> web.Response:
        thing = await _body(request)
        namespace = request.match_info.get("namespace", "")
        wanted = self._may(request, "create", name=thing["metadata"].get("name", ""))
        self._check(request, thing)
        await self._kube.admit(request, wanted, thing, None)
        self._fill(thing)
        if _dry(request):
            return _json(thing, 201)
        return _json(await self._storage.create(self._resource, namespace, thing), 201)

    async def change(self, request: web.Request) -> web.Response:
        namespace = request.match_info.get("namespace", "")
        name, below = request.match_info["name"], request.match_info.get("below", "")
        wanted = self._may(
            request, "update" if request.method == "PUT" else "patch", name=name, below=below
        )
        body = await _body(request)
        old = self._storage.find(self._resource, namespace, name)
        if old is None:
            if request.content_type != "application/apply-patch+yaml":
                self._found(request)
            self._check(request, body)
            self._fill(body)
            await self._kube.admit(request, wanted, body, None)
            return _json(await self._storage.create(self._resource, namespace, body), 201)
        new = _patched(old, body, request)
        if below == "status":
            new = {**old, "metadata": new["metadata"], "status": new.get("status", {})}
        elif "status" in self._resource.subresources and "status" in old:
            new["status"] = old["status"]
        self._fill(new)
        self._check(request, new)
        await self._kube.admit(request, wanted, new, old)

        if _dry(request):
            return _json(new)
        if self._kube.between is not None:
            await self._kube.between()

        def replace(now: Object) -> Object:
            if request.method != "PUT" and now != old:
                # A patch without a version is made again from what is there by now.
                again = _patched(now, body, request)
                return {**again, "status": now.get("status", {})} if not below else again
            return self._kube.mutate(deepcopy(new))

        stored = await self._storage.change(self._resource, namespace, name, replace)
        if self._resource is NODES and not below:
            await self._kube.taint_cordoned(stored)
        return _json(stored)

    async def delete(self, request: web.Request) -> web.Response:
        wanted = self._may(request, "delete", name=request.match_info["name"])
        old = self._found(request)
        await self._kube.admit(request, wanted, None, old)
        namespace = request.match_info.get("namespace", "")
        return _json(await self._storage.delete(self._resource, namespace, wanted.name))

    async def evict(self, request: web.Request) -> web.Response:
        wanted = self._may(request, "create", name=request.match_info["name"], below="eviction")
        pod = self._found(request)
        body = await _body(request)
        uid = body.get("deleteOptions", {}).get("preconditions", {}).get("uid")
        if uid and uid != pod["metadata"]["uid"]:
            raise Refusal(409, "Conflict", "the UID in the precondition does not match")
        for budget in self._storage.list(BUDGETS, wanted.namespace):
            labels = budget["spec"]["selector"]["matchLabels"]
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            if labelled(pod, selector) and not budget["status"]["disruptionsAllowed"]:
                raise Refusal(
                    429, "TooManyRequests", "Cannot evict pod as it would violate its budget"
                )
        await self._storage.delete(PODS, wanted.namespace, wanted.name)
        return _json({"kind": "Status", "apiVersion": "v1", "status": "Success"}, 201)

    def _may(
        self, request: web.Request, verb: str, *, name: str | None = None, below: str = ""
    ) -> Wanted:
        wanted = Wanted(
            verb,
            self._resource,
            below,
            request.match_info.get("namespace", ""),
            request.match_info.get("name", "") if name is None else name,
        )
        user: User = request["user"]
        if not allowed(self._storage, user, wanted):
            raise Refusal(
                403,
                "Forbidden",
                f'{wanted.full} "{wanted.name}" is forbidden: User "{user.name}" cannot {verb} '
                f'resource "{wanted.full}" in API group "{self._resource.group}"',
            )
        return wanted

    def _found(self, request: web.Request) -> Object:
        namespace, name = request.match_info.get("namespace", ""), request.match_info["name"]
        found = self._storage.find(self._resource, namespace, name)
        if found is None:
            raise Refusal(404, "NotFound", f'{self._resource.plural} "{name}" not found')
        return found

    def _check(self, request: web.Request, thing: Object) -> None:
        if request.query.get("fieldValidation") == "Strict" or self._resource is EVENTS:
            problem = _problem(thing)
            if problem:
                raise Refusal(400, "BadRequest", f"strict decoding error: {problem}")

    def _fill(self, thing: Object) -> None:
        """What a server adds of itself."""
        if self._resource is NODES:
            thing.setdefault("spec", {})
        if self._resource is SECRETS:
            thing.setdefault("type", "Opaque")


def _problem(thing: Object) -> str:
    try:
        kubernetes_validate.validate(thing, SCHEMAS, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return ""
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(str(part) for part in error.path)}: {error.message}"
    return ""


def _patched(old: Object, body: Any, request: web.Request) -> Object:
    if request.method == "PUT":
        return deepcopy(dict(body))
    match request.content_type:
        case "application/merge-patch+json":
            new = merge(old, body)
        case "application/json-patch+json":
            new = json_patch(old, body)
        case "application/strategic-merge-patch+json" | "application/apply-patch+yaml":
            new = strategic(old, body)
        case other:
            raise Refusal(415, "UnsupportedMediaType", f"the body of the request was {other}")
    named = body.get("metadata", {}).get("resourceVersion") if isinstance(body, dict) else None
    if named is None and isinstance(new.get("metadata"), dict):
        # What was not named is no condition.
        new["metadata"].pop("resourceVersion", None)
    result: Object = new
    return result


def _dry(request: web.Request) -> bool:
    return request.query.get("dryRun") == "All"


def _wanted(request: web.Request, thing: Object) -> bool:
    return labelled(thing, request.query.get("labelSelector", "")) and fielded(
        thing, request.query.get("fieldSelector", "")
    )


async def _body(request: web.Request) -> Any:
    if request.content_type == protobuf.KIND:
        return protobuf.decode(await request.read())
    text = await request.text()
    return yaml.safe_load(text) if request.content_type.endswith("yaml") else json.loads(text)


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


def _json(thing: Any, code: int = 200) -> web.Response:
    return web.json_response(thing, status=code)


def status(code: int, reason: str, message: str) -> web.Response:
    """A refusal as an API server words it."""
    return web.json_response(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        },
        status=code,
    )
