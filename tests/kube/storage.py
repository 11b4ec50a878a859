"""Objects with one counter of versions, as etcd keeps them for an API server."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from tests.kube.discovery import Resource

Object: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str]


class Conflict(Exception):
    """Somebody was faster, or it is there already; the message says which."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Change:
    """One line of a watch."""

    version: int
    kind: str
    resource: Resource
    object: Object


def current(resource: Resource, meta: Object, before: Object) -> None:
    """Raise `Conflict` where *meta* names another version than *before* has.

    A real server looks at this before its policies do.
    """
    named, name = meta.get("resourceVersion"), before["metadata"]["name"]
    if named and named != before["metadata"]["resourceVersion"]:
        raise Conflict(
            "Conflict",
            f'Operation cannot be fulfilled on {resource.plural} "{name}": the object has '
            "been modified; please apply your changes to the latest version and try again",
        )


class Storage:
    """All there is; every change has a number, and waiters hear of it."""

    def __init__(self) -> None:
        self.version = 100
        self.log: list[Change] = []
        self.news = asyncio.Condition()
        self._objects: dict[Resource, dict[Key, Object]] = {}

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        found = self._objects.get(resource, {}).get((namespace, name))
        return deepcopy(found) if found is not None else None

    def list(self, resource: Resource, namespace: str = "") -> Iterator[Object]:
        """All of a kind, of one namespace or of all."""
        for (of, _), found in sorted(self._objects.get(resource, {}).items()):
            if not namespace or of == namespace:
                yield deepcopy(found)

    async def create(self, resource: Resource, namespace: str, thing: Object) -> Object:
        meta = thing.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        key = (namespace, meta["name"])
        if key in self._objects.setdefault(resource, {}):
            raise Conflict("AlreadyExists", f'{resource.plural} "{meta["name"]}" already exists')
        if namespace:
            meta["namespace"] = namespace
        meta["uid"] = str(uuid.uuid4())
        meta["generation"] = 1
        meta["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        thing.setdefault("apiVersion", resource.group_version)
        thing.setdefault("kind", resource.kind)
        return await self._record("ADDED", resource, key, thing)

    async def change(
        self, resource: Resource, namespace: str, name: str, make: Callable[[Object], Object]
    ) -> Object:
        """Replace it by what *make* makes of it; optimistic, by the version it names."""
        key = (namespace, name)
        before = self._objects[resource][key]
        after = make(deepcopy(before))
        meta = after["metadata"]
        current(resource, meta, before)
        for field in ("uid", "creationTimestamp", "name", "namespace"):
            if field in before["metadata"]:
                meta[field] = before["metadata"][field]
        meta["resourceVersion"] = before["metadata"]["resourceVersion"]
        if after == before:
            return deepcopy(after)
        return await self._record("MODIFIED", resource, key, after)

    async def delete(self, resource: Resource, namespace: str, name: str) -> Object:
        gone = self._objects[resource].pop((namespace, name))
        return await self._record("DELETED", resource, None, gone)

    async def _record(
        self, kind: str, resource: Resource, key: Key | None, thing: Object
    ) -> Object:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        if key is not None:
            self._objects[resource][key] = thing
        self.log.append(Change(self.version, kind, resource, deepcopy(thing)))
        async with self.news:
            self.news.notify_all()
        return deepcopy(thing)
