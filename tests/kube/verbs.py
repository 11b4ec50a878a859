"""What can be done with one kind of object: every verb of the API, on its storage."""

import asyncio
import json
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING

from aiohttp import web

from tests.kube.access import User, Wanted, allowed
from tests.kube.answers import Refusal, as_json, body_of, dry, patched, problem_of, selected
from tests.kube.discovery import BUDGETS, EVENTS, NODES, PODS, SECRETS, Resource
from tests.kube.selectors import labelled
from tests.kube.storage import Object, current

if TYPE_CHECKING:
    from tests.kube.server import Kube


class Handler:
    """All verbs of one kind."""

    def __init__(self, kube: "Kube", resource: Resource) -> None:
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
            each
            for each in self._storage.list(self._resource, namespace)
            if selected(request, each)
        ]
        meta: Object = {"resourceVersion": str(self._storage.version)}
        begin = int(request.query.get("continue") or 0)
        end = begin + int(request.query.get("limit") or len(items))
        if end < len(items):
            meta |= {"continue": str(end), "remainingItemCount": len(items) - end}
        return as_json(
            {
                "kind": f"{self._resource.kind}List",
                "apiVersion": self._resource.group_version,
                "metadata": meta,
                "items": items[begin:end],
            }
        )

    async def _watch(self, request: web.Request, namespace: str) -> web.StreamResponse:
        position = int(request.query.get("resourceVersion") or self._storage.version)
        ends = self._kube.ends
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
                            and selected(request, change.object)
                        ):
                            line = {"type": change.kind, "object": change.object}
                            await response.write(json.dumps(line).encode() + b"\n")
                    async with self._storage.news:
                        if self._storage.version == position:
                            await self._storage.news.wait()
        return response

    async def get(self, request: web.Request) -> web.Response:
        self._may(request, "get")
        return as_json(self._found(request))

    async def create(self, request: web.Request) -> web.Response:
        thing = await body_of(request)
        namespace = request.match_info.get("namespace", "")
        wanted = self._may(request, "create", name=thing["metadata"].get("name", ""))
        self._check(request, thing)
        await self._kube.admit(request, wanted, thing, None)
        self._fill(thing)
        if dry(request):
            return as_json(thing, 201)
        return as_json(await self._storage.create(self._resource, namespace, thing), 201)

    async def change(self, request: web.Request) -> web.Response:
        namespace = request.match_info.get("namespace", "")
        name, below = request.match_info["name"], request.match_info.get("below", "")
        wanted = self._may(
            request, "update" if request.method == "PUT" else "patch", name=name, below=below
        )
        body = await body_of(request)
        old = self._storage.find(self._resource, namespace, name)
        if old is None:
            if request.content_type != "application/apply-patch+yaml":
                self._found(request)
            self._check(request, body)
            self._fill(body)
            await self._kube.admit(request, wanted, body, None)
            return as_json(await self._storage.create(self._resource, namespace, body), 201)
        new = patched(old, body, request)
        if below == "status":
            new = {**old, "metadata": new["metadata"], "status": new.get("status", {})}
        elif "status" in self._resource.subresources and "status" in old:
            new["status"] = old["status"]
        self._fill(new)
        self._check(request, new)
        current(self._resource, new["metadata"], old)
        await self._kube.admit(request, wanted, new, old)

        if dry(request):
            return as_json(new)
        if self._kube.between is not None:
            await self._kube.between()

        def replace(now: Object) -> Object:
            if request.method != "PUT" and now != old:
                # A patch without a version is made again from what is there by now.
                again = patched(now, body, request)
                return {**again, "status": now.get("status", {})} if not below else again
            return self._kube.mutate(deepcopy(new))

        stored = await self._storage.change(self._resource, namespace, name, replace)
        if self._resource is NODES and not below:
            await self._kube.taint_cordoned(stored)
        return as_json(stored)

    async def delete(self, request: web.Request) -> web.Response:
        wanted = self._may(request, "delete", name=request.match_info["name"])
        old = self._found(request)
        await self._kube.admit(request, wanted, None, old)
        namespace = request.match_info.get("namespace", "")
        return as_json(await self._storage.delete(self._resource, namespace, wanted.name))

    async def evict(self, request: web.Request) -> web.Response:
        wanted = self._may(request, "create", name=request.match_info["name"], below="eviction")
        pod = self._found(request)
        body = await body_of(request)
        uid = body.get("deleteOptions", {}).get("preconditions", {}).get("uid")
        if uid and uid != pod["metadata"]["uid"]:
            raise Refusal(
                409,
                "Conflict",
                f"the UID in the precondition ({uid}) does not match the UID in record",
            )
        for budget in self._storage.list(BUDGETS, wanted.namespace):
            labels = budget["spec"]["selector"]["matchLabels"]
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            if labelled(pod, selector) and not budget["status"]["disruptionsAllowed"]:
                raise Refusal(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                )
        await self._storage.delete(PODS, wanted.namespace, wanted.name)
        return as_json({"kind": "Status", "apiVersion": "v1", "status": "Success"}, 201)

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
            problem = problem_of(thing)
            if problem:
                raise Refusal(400, "BadRequest", f"strict decoding error: {problem}")

    def _fill(self, thing: Object) -> None:
        """What a server adds of itself."""
        if self._resource is NODES:
            thing.setdefault("spec", {})
        if self._resource is SECRETS:
            thing.setdefault("type", "Opaque")
