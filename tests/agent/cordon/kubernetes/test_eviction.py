"""Pods are evicted from a closed node once everything is saved, as far as budgets and the server let them."""

import asyncio

import pytest

from evacd.cordon.kubernetes.asking import Pauses
from evacd.kube import LINE_LIMIT, Failed
from tests.agent.cordon.kubernetes.conftest import NODE, ORDER, Cluster, Make, close
from tests.kube.discovery import BUDGETS, PODS
from tests.kube.server import Fault
from tests.kube.storage import Object


@pytest.fixture(autouse=True)
async def pods(cluster: Cluster) -> None:
    def pod(name: str, *, node: str = NODE, owner: str = "Job", **meta: object) -> Object:
        return {
            "metadata": {
                "name": name,
                "labels": {"app": name},
                "ownerReferences": [{"kind": owner}],
                **meta,
            },
            "spec": {"nodeName": node},
            "status": {"phase": "Succeeded" if name == "ended" else "Running"},
        }

    for each in (
        pod("train-0"),
        pod("train-1"),
        pod("elsewhere", node="gpu-8"),
        pod("evacd", owner="DaemonSet"),
        pod("static", annotations={"kubernetes.io/config.mirror": "x"}),
        pod("ended"),
    ):
        await cluster.kube.storage.create(PODS, "team", each)


def left(cluster: Cluster) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.kube.storage.list(PODS)}


STAY = frozenset({"elsewhere", "evacd", "static", "ended"})


async def test_nothing_is_evicted_unasked(cluster: Cluster, make: Make) -> None:
    cordon = make()
    await close(cordon)
    assert await cordon.emptied(ORDER, kept=2, lost=0, seconds_left=5.0) is None

    assert len(left(cluster)) == 6
    assert [e["reason"] for e in cluster.events()] == ["FlushCompleted", "NoticeReceived"]


async def test_a_close_evicts_nothing(cluster: Cluster, make: Make) -> None:
    await close(make(evict_pods=True))
    assert len(left(cluster)) == 6


async def test_after_the_flush_what_can_move_is_evicted(cluster: Cluster, make: Make) -> None:
    cordon = make(evict_pods=True)
    assert await cordon.emptied(ORDER, kept=2, lost=0, seconds_left=5.0) is None

    assert left(cluster) == STAY
    assert [e["reason"] for e in cluster.events()] == ["FlushCompleted"]


async def test_what_is_not_saved_is_not_evicted_before_the_deadline(
    cluster: Cluster, make: Make
) -> None:
    cordon = make(evict_pods=True)
    wrong = await cordon.emptied(ORDER, kept=1, lost=1, seconds_left=5.0)

    assert wrong == "no pod evicted before the deadline: 1 jobs are not saved"
    assert len(left(cluster)) == 6
    assert await cordon.emptied(ORDER, kept=1, lost=1, seconds_left=-0.1) is None
    assert left(cluster) == STAY


async def test_pods_are_asked_for_beside_each_other(cluster: Cluster, make: Make) -> None:
    """No eviction is answered before eight are under way: one after the other none would be."""
    for number in range(14):
        pod = {"metadata": {"name": f"p-{number}"}, "spec": {"nodeName": NODE}, "status": {}}
        await cluster.kube.storage.create(PODS, "team", pod)
    together = asyncio.Barrier(8)
    cluster.kube.faults = [Fault("POST", "/eviction", together=together)]
    cordon = make(evict_pods=True)

    assert await cordon.emptied(ORDER, kept=2, lost=0, seconds_left=20.0) is None
    assert left(cluster) == STAY


async def test_a_node_may_have_more_pods_than_one_answer_holds(
    cluster: Cluster, make: Make
) -> None:
    for number in range(130):
        meta = {"name": f"p-{number}", "annotations": {"large": "x" * 40_000}}
        pod = {"metadata": meta, "spec": {"nodeName": NODE}, "status": {}}
        await cluster.kube.storage.create(PODS, "team", pod)

    cordon = make(evict_pods=True)
    assert await cordon.emptied(ORDER, kept=2, lost=0, seconds_left=20.0) is None
    assert left(cluster) == STAY


async def test_an_answer_that_is_too_large_is_not_asked_for_again(
    cluster: Cluster, make: Make
) -> None:
    meta = {"name": "huge", "annotations": {"large": "x" * LINE_LIMIT}}
    pod = {"metadata": meta, "spec": {"nodeName": NODE}, "status": {}}
    await cluster.kube.storage.create(PODS, "team", pod)

    wrong = await make(evict_pods=True).emptied(ORDER, kept=2, lost=0, seconds_left=20.0)
    assert wrong is not None
    assert wrong.startswith("no pod evicted: the answer is over")


async def test_a_pod_that_is_another_one_by_now_is_let_be(cluster: Cluster, make: Make) -> None:
    """A StatefulSet gives the next one the same name."""
    held = asyncio.Barrier(2)
    cluster.kube.faults = [Fault("POST", "/train-0/eviction", together=held, times=1)]
    cordon = make(evict_pods=True)
    (old,) = [p for p in cluster.kube.storage.list(PODS) if p["metadata"]["name"] == "train-0"]

    async with asyncio.TaskGroup() as tasks:
        emptied = tasks.create_task(cordon.emptied(ORDER, kept=1, lost=0, seconds_left=20.0))
        while not held.n_waiting:  # noqa: ASYNC110 - the server counts
            await asyncio.sleep(0.01)
        await cluster.kube.storage.delete(PODS, "team", "train-0")
        new = {"metadata": {"name": "train-0"}, "spec": old["spec"], "status": old["status"]}
        await cluster.kube.storage.create(PODS, "team", new)
        await held.wait()

    assert emptied.result() is None
    assert left(cluster) == STAY | {"train-0"}


async def test_a_pod_that_was_written_to_meanwhile_is_asked_for_again(
    cluster: Cluster, make: Make
) -> None:
    cluster.kube.faults = [Fault("POST", "/train-0/eviction", status=409, times=1)]
    cordon = make(evict_pods=True)

    assert await cordon.emptied(ORDER, kept=1, lost=0, seconds_left=20.0) is None
    assert left(cluster) == STAY


async def test_a_server_that_has_too_much_to_do_is_asked_no_sooner_than_it_wants(
    cluster: Cluster, make: Make
) -> None:
    cluster.kube.faults = [Fault("POST", "/eviction", status=429, retry_after=10)]
    cordon = make(evict_pods=True, timeout_seconds=3.0)

    wrong = await cordon.emptied(ORDER, kept=1, lost=0, seconds_left=3.0)

    assert wrong is not None
    assert wrong.startswith("2 pods not evicted: team/train-0 (HTTP 429")
    asked = [each.path for each in cluster.kube.asked if each.path.endswith("/eviction")]
    assert len(asked) == 2


def test_pauses_grow_to_a_limit_and_obey_within_reason() -> None:
    pauses = Pauses(0.5, most=5.0, obeyed=10.0)
    assert [pauses.after(Failed("x")) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert pauses.after(Failed("x", retry_after=7.0)) == 7.0
    assert pauses.after(Failed("x", retry_after=3600.0)) == 10.0


async def test_pods_that_can_never_be_evicted_keep_no_others_from_it(
    cluster: Cluster, make: Make
) -> None:
    """Under two budgets a pod's eviction is answered with 500, again and again."""
    for number in range(16):
        meta = {"name": f"a-{number}", "labels": {}, "ownerReferences": []}
        pod = {"metadata": meta, "spec": {"nodeName": NODE}, "status": {"phase": "Running"}}
        await cluster.kube.storage.create(PODS, "team", pod)
    cluster.kube.faults = [
        Fault("POST", f"/pods/a-{number}/eviction", status=500) for number in range(16)
    ]
    cordon = make(evict_pods=True, timeout_seconds=4.0)

    wrong = await cordon.emptied(ORDER, kept=1, lost=0, seconds_left=4.0)

    assert wrong is not None
    assert wrong.startswith("16 pods not evicted: team/a-")
    assert "HTTP 500" in wrong
    assert not {"train-0", "train-1"} & left(cluster)


async def budget(cluster: Cluster, *, allowed: int) -> None:
    await cluster.kube.storage.create(
        BUDGETS,
        "team",
        {
            "metadata": {"name": "train"},
            "spec": {"selector": {"matchLabels": {"app": "train-0"}}},
            "status": {"disruptionsAllowed": allowed},
        },
    )


async def test_a_budget_is_obeyed_and_told_within_the_time(cluster: Cluster, make: Make) -> None:
    await budget(cluster, allowed=0)
    cordon = make(evict_pods=True, timeout_seconds=3.0)

    wrong = await cordon.emptied(ORDER, kept=1, lost=0, seconds_left=3.0)

    assert wrong == "1 pods not evicted: team/train-0 (a disruption budget forbids it)"
    assert left(cluster) == STAY | {"train-0"}


async def test_a_budget_that_allows_it_later_is_asked_again(cluster: Cluster, make: Make) -> None:
    await budget(cluster, allowed=0)
    cordon = make(evict_pods=True)

    async with asyncio.TaskGroup() as tasks:
        emptied = tasks.create_task(cordon.emptied(ORDER, kept=1, lost=0, seconds_left=30.0))
        async with cluster.kube.storage.news:
            await cluster.kube.storage.news.wait_for(lambda: "train-1" not in left(cluster))

        def allow(budget: Object) -> Object:
            budget["status"]["disruptionsAllowed"] = 1
            return budget

        await cluster.kube.storage.change(BUDGETS, "team", "train", allow)
    assert emptied.result() is None
    assert left(cluster) == STAY


async def test_pods_that_may_not_be_listed_are_told(cluster: Cluster, make: Make) -> None:
    cluster.kube.faults = [Fault("GET", "/pods", status=403)]
    wrong = await make(evict_pods=True).emptied(ORDER, kept=1, lost=0, seconds_left=1.0)

    assert wrong is not None
    assert wrong.startswith("no pod evicted: HTTP 403")
