import ssl
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp.test_utils import TestServer

from evacd.clock import SystemClock
from evacd.cordon import Unanswered
from evacd.cordon.kubernetes import KubernetesCordon
from evacd.cordon.kubernetes.telling import KubernetesTelling
from evacd.facts import Confidence, Order
from evacd.kube import Access, Client, Limits
from tests.kube.access import MASTERS, User
from tests.kube.discovery import EVENTS, NODES
from tests.kube.server import Kube
from tests.kube.storage import Object

NODE = "gpu-7"
QUICK = Limits(connect=1.0, read=0.5)
# What a node's telling need not know.
_ACTS = ("report_only", "evict_pods", "second_after_seconds")
ORDER = Order("ab12-1", 1030.0, Confidence.CERTAIN, "gcp", "preempted", given=1000.0)


class Node:
    """Both lines of one node, side by side as the daemon has them."""

    def __init__(self, cordon: KubernetesCordon, telling: KubernetesTelling) -> None:
        self.cordon = cordon
        self.telling = telling

    async def close(self, order: Order, *, seconds_left: float) -> str | None:
        return await self._news(
            order,
            "close",
            self.cordon.close(order, seconds_left=seconds_left),
            self.telling.close(order, seconds_left=seconds_left),
        )

    async def reopen(self, order: Order, *, reason: str) -> str | None:
        return await self._news(
            order,
            "reopen",
            self.cordon.reopen(order, reason=reason),
            self.telling.reopen(order, reason=reason),
        )

    async def emptied(
        self, order: Order, *, kept: int, lost: int, seconds_left: float
    ) -> str | None:
        return _joined(
            *[
                await one.emptied(order, kept=kept, lost=lost, seconds_left=seconds_left)
                for one in (self.cordon, self.telling)
            ]
        )

    async def rehearse(self) -> str | None:
        return _joined(await self.cordon.rehearse(), await self.telling.rehearse())

    async def _news(
        self,
        order: Order,
        what: str,
        deed: Coroutine[Any, Any, str | None],
        told: Coroutine[Any, Any, str | None],
    ) -> str | None:
        async with TaskGroup() as tasks:
            done, said = tasks.create_task(deed), tasks.create_task(told)
        wrong = done.result()
        event = (
            "cordon.failed" if wrong else {"close": "cordon.closed"}.get(what, "cordon.reopened")
        )
        data = {"name": "kubernetes", "what": what, "reason": wrong or "cancelled"}
        return _joined(wrong, said.result(), await self.telling.heard(order.id, event, data))


def _joined(*wrong: str | None) -> str | None:
    text = "; ".join(each for each in wrong if each)
    return Unanswered(text) if any(isinstance(each, Unanswered) for each in wrong) else text or None


Make = Callable[..., Node]


async def close(node: Node, seconds_left: float = 29.8) -> str | None:
    return await node.close(ORDER, seconds_left=seconds_left)


class Cluster:
    """One API server, its one node, and a service account's files."""

    def __init__(self, kube: Kube, access: Access) -> None:
        self.kube = kube
        self.access = access

    @property
    def node(self) -> Object:
        found = self.kube.storage.find(NODES, "", NODE)
        assert found is not None
        return found

    async def edit(self, change: Callable[[Object], None]) -> None:
        """Somebody else changes the node."""

        def edited(now: Object) -> Object:
            change(now)
            return now

        await self.kube.storage.change(NODES, "", NODE, edited)

    @property
    def taints(self) -> list[str]:
        return [each["key"] for each in self.node["spec"].get("taints") or []]

    def conditions(self) -> dict[str, str]:
        return {each["type"]: each["status"] for each in self.node["status"]["conditions"]}

    def events(self) -> list[Object]:
        return list(self.kube.storage.list(EVENTS))


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def served(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
async def cluster(
    authority: trustme.CA, served: ssl.SSLContext, tmp_path: Path
) -> AsyncIterator[Cluster]:
    kube = Kube({"token-1": User("evacd", (MASTERS,))})
    await kube.storage.create(
        NODES,
        "",
        {
            "metadata": {"name": NODE, "labels": {"kubernetes.io/os": "linux"}},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        },
    )
    (tmp_path / "token").write_text("token-1\n")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    server = TestServer(kube.app, scheme="https")
    await server.start_server(ssl=served)
    url = f"https://127.0.0.1:{server.port}"
    try:
        yield Cluster(kube, Access(url, tmp_path / "token", tmp_path / "ca.crt"))
    finally:
        kube.end_watches()
        await server.close()


@pytest.fixture
async def make(cluster: Cluster) -> AsyncIterator[Make]:
    """Makes cordons of this cluster's node."""
    async with aiohttp.ClientSession() as session:

        def node(
            *,
            access: Access | None = None,
            aliases: Iterable[str] = (),
            told_seconds: float | None = None,
            limits: Limits = QUICK,
            **settings: Any,
        ) -> Node:
            client = Client(session, access or cluster.access, limits=limits)
            both = {"node": NODE, "boot": "boot-1", "timeout_seconds": 20.0, **settings}
            cordon = KubernetesCordon(client, **both)
            told = {key: each for key, each in both.items() if key not in _ACTS}
            told["timeout_seconds"] = told_seconds or both["timeout_seconds"]
            telling = KubernetesTelling(client, SystemClock(), cordon, aliases=aliases, **told)
            return Node(cordon, telling)

        yield node
