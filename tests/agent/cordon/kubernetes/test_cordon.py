"""The Kubernetes cordon against an API server that refuses, conflicts, is slow or away."""

import asyncio
import json
import socket
from dataclasses import replace

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from structlog.testing import capture_logs

from evacd.cordon import Cordon, Following, Telling, Unanswered, closes
from evacd.cordon.kubernetes import KubernetesCordon
from evacd.cordon.kubernetes.marks import ANNOTATION, TAINT
from evacd.facts import Confidence
from evacd.kube import Client, in_cluster
from tests.agent.busy import no_thread_left
from tests.agent.cordon.kubernetes.conftest import NODE, ORDER, Cluster, Make, close
from tests.kube.access import User
from tests.kube.server import CORDONED, Fault
from tests.kube.storage import Object


async def test_it_is_a_cordon_that_follows_the_flush(make: Make) -> None:
    cordon: Cordon = make().cordon
    telling: Cordon = make().telling

    assert isinstance(cordon, Following)
    assert isinstance(telling, Telling)
    # What only tells of it lets everything else go on.
    assert not isinstance(cordon, Telling)
    assert closes(cordon)
    assert not closes(telling)


async def test_the_node_is_unschedulable_and_tainted_and_other_taints_stay(
    cluster: Cluster, make: Make
) -> None:
    assert await close(make()) is None

    assert cluster.node["spec"]["unschedulable"] is True
    assert sorted(cluster.taints) == sorted(["nvidia.com/gpu", CORDONED, TAINT])
    ours = [each for each in cluster.node["spec"]["taints"] if each["key"] == TAINT]
    assert ours == [{"key": TAINT, "value": "gcp-preempted", "effect": "NoSchedule"}]


async def test_unschedulable_comes_first_and_alone(cluster: Cluster, make: Make) -> None:
    await close(make())

    first = next(each for each in cluster.kube.storage.log[1:] if each.kind == "MODIFIED")
    assert first.object["spec"]["unschedulable"] is True
    assert [each["key"] for each in first.object["spec"]["taints"]] == ["nvidia.com/gpu"]


async def test_nothing_is_ever_tainted_no_execute(cluster: Cluster, make: Make) -> None:
    cordon = make(evict_pods=True)
    await close(cordon)
    await cordon.emptied(ORDER, kept=1, lost=0, seconds_left=10.0)
    await cordon.reopen(ORDER, reason="cancelled")

    effects = {
        taint["effect"]
        for change in cluster.kube.storage.log
        for taint in change.object.get("spec", {}).get("taints") or []
    }
    assert effects == {"NoSchedule"}


async def test_a_condition_and_an_event_tell_the_deadline_and_the_reason(
    cluster: Cluster, make: Make
) -> None:
    node = make(aliases=("GCESpotPreempting", "Terminating"))
    assert await node.telling.left_over() is None
    assert await close(node) is None

    assert cluster.conditions() == {
        "Ready": "True",
        "EvacLeaving": "True",
        "GCESpotPreempting": "True",
        "Terminating": "True",
    }
    condition = cluster.node["status"]["conditions"][1]
    assert condition["reason"] == "GcpPreempted"
    assert "29.8 s left" in condition["message"]
    assert "ab12-1" in condition["message"]
    (event,) = cluster.events()
    assert (event["reason"], event["type"]) == ("NoticeReceived", "Warning")
    assert event["involvedObject"]["uid"] == cluster.node["metadata"]["uid"]
    assert "deadline 20" in event["message"]


async def test_an_amended_deadline_is_told(cluster: Cluster, make: Make) -> None:
    node = make()
    await close(node, seconds_left=120.0)

    surer = replace(ORDER, confidence=Confidence.STARTED, amendments=1)
    assert await node.telling.amended(surer, seconds_left=5.0) is None

    assert "started): deadline" in cluster.node["status"]["conditions"][1]["message"]
    assert "5.0 s left" in cluster.node["status"]["conditions"][1]["message"]
    assert [e["reason"] for e in cluster.events()] == ["NoticeAmended1", "NoticeReceived"]


async def test_a_rehearsal_says_that_all_is_allowed_and_changes_nothing(
    cluster: Cluster, make: Make
) -> None:
    before = cluster.node

    assert await make(evict_pods=True).rehearse() is None
    assert cluster.node == before
    assert cluster.events() == []


async def test_a_rehearsal_names_what_is_not_allowed(cluster: Cluster, make: Make) -> None:
    cluster.kube.tokens["token-1"] = User("somebody")

    wrong = await make().rehearse()
    assert wrong is not None
    for each in ("cordon: HTTP 403", "condition: HTTP 403", "event: HTTP 403"):
        assert each in wrong


async def test_a_reopened_node_is_as_it_was(cluster: Cluster, make: Make) -> None:
    cordon = make(aliases=("Terminating",))
    await close(cordon)

    assert await cordon.reopen(ORDER, reason="cancelled by gcp") is None

    assert "unschedulable" not in cluster.node["spec"]
    assert cluster.taints == ["nvidia.com/gpu"]
    assert ANNOTATION not in cluster.node["metadata"].get("annotations", {})
    assert cluster.conditions() == {"Ready": "True", "EvacLeaving": "False", "Terminating": "False"}
    assert [each["reason"] for each in cluster.events()] == ["NoticeReceived", "Uncordon"]


async def test_another_s_cordon_is_remembered_and_stays(cluster: Cluster, make: Make) -> None:
    await cluster.edit(lambda node: node["spec"].update(unschedulable=True))
    cordon = make()

    assert await close(cordon) is None
    remembered = json.loads(cluster.node["metadata"]["annotations"][ANNOTATION])
    assert remembered == {"order": "ab12-1", "boot": "boot-1", "cordoned_before": True}

    assert await cordon.reopen(ORDER, reason="cancelled") is None
    assert cluster.node["spec"]["unschedulable"] is True
    assert TAINT not in cluster.taints
    # Nothing says that it was opened.
    assert [each["reason"] for each in cluster.events()] == ["NoticeCancelled", "NoticeReceived"]


async def test_what_we_closed_twice_was_not_closed_before(cluster: Cluster, make: Make) -> None:
    await close(make(boot="boot-1"))
    again = make(boot="boot-2")
    await close(again)

    await again.reopen(ORDER, reason="cancelled")
    assert "unschedulable" not in cluster.node["spec"]


async def test_a_reopen_of_what_is_not_ours_changes_nothing(cluster: Cluster, make: Make) -> None:
    await cluster.edit(lambda node: node["spec"].update(unschedulable=True))
    before = cluster.node["spec"]

    assert await make().reopen(ORDER, reason="cancelled") is None
    assert cluster.node["spec"] == before


async def test_after_conflicts_the_taint_is_there_and_nobody_s_is_lost(
    cluster: Cluster, make: Make
) -> None:
    """Somebody writes the taints between our look and our patch, again and again."""
    others = iter(range(6))

    async def taint() -> None:
        if (number := next(others, None)) is not None:
            other = {"key": f"other-{number}", "effect": "NoSchedule"}
            await cluster.edit(lambda node: node["spec"]["taints"].append(other))

    cluster.kube.between = taint

    assert await close(make()) is None

    assert TAINT in cluster.taints
    assert {f"other-{number}" for number in range(6)} < set(cluster.taints)
    assert "nvidia.com/gpu" in cluster.taints


async def test_a_conflict_that_does_not_end_still_leaves_it_unschedulable(
    cluster: Cluster, make: Make
) -> None:
    cluster.kube.faults = [Fault("PATCH", f"/nodes/{NODE}", status=409, times=3)]

    assert await close(make()) is None
    assert cluster.node["spec"]["unschedulable"] is True


async def test_a_taint_that_somebody_loses_is_put_back(cluster: Cluster, make: Make) -> None:
    lost = asyncio.Event()

    async def lose() -> None:
        while not lost.is_set():
            async with cluster.kube.storage.news:
                await cluster.kube.storage.news.wait()
            if TAINT in cluster.taints:
                lost.set()
                await cluster.edit(
                    lambda node: node["spec"].update(
                        taints=[each for each in node["spec"]["taints"] if each["key"] != TAINT]
                    )
                )

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lose())
        assert await close(make()) is None

    assert lost.is_set()
    assert TAINT in cluster.taints


async def test_a_taint_that_does_not_stay_is_told(cluster: Cluster, make: Make) -> None:
    def without(node: Object) -> Object:
        left = [each for each in node["spec"].get("taints") or [] if each["key"] != TAINT]
        node["spec"]["taints"] = left
        return node

    cluster.kube.mutate = without

    wrong = await close(make())
    assert wrong == f"cordon: somebody undoes it: it has no taint {TAINT}"


@pytest.mark.parametrize("status", [-1, 401, 429, 500, 503])
async def test_what_passes_is_tried_again(cluster: Cluster, make: Make, status: int) -> None:
    cluster.kube.faults = [Fault(status=status, times=4)]

    with capture_logs() as logs:
        assert await close(make()) is None
    assert TAINT in cluster.taints
    assert [each["event"] for each in logs if each["event"] == "cordon.delayed"]


async def test_a_patch_whose_answer_is_lost_is_made_once(cluster: Cluster, make: Make) -> None:
    cluster.kube.faults = [Fault("PATCH", status=-1, times=1, after=True)]

    assert await close(make()) is None
    assert cluster.taints.count(TAINT) == 1
    remembered = json.loads(cluster.node["metadata"]["annotations"][ANNOTATION])
    assert remembered["cordoned_before"] is False


async def test_an_event_that_is_told_again_is_one(cluster: Cluster, make: Make) -> None:
    cluster.kube.faults = [Fault("POST", status=503, times=1, after=True)]

    assert await close(make()) is None
    assert len(cluster.events()) == 1


async def test_a_token_that_the_kubelet_rotates_is_read_anew(cluster: Cluster, make: Make) -> None:
    cluster.kube.tokens["token-2"] = cluster.kube.tokens.pop("token-1")
    cordon = make()

    async with asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(close(cordon))
        async with asyncio.timeout(60):
            while not any(each.user == "" for each in cluster.kube.asked):  # noqa: ASYNC110 - the server counts
                await asyncio.sleep(0.01)
        cluster.access.token_file.write_text("token-2")
    assert closing.result() is None


async def test_a_forbidden_step_is_told_with_its_cure_and_costs_no_other(
    cluster: Cluster, make: Make
) -> None:
    cluster.kube.faults = [Fault("PATCH", f"/nodes/{NODE}/status", status=403)]

    wrong = await close(make())

    assert wrong is not None
    assert wrong.startswith("condition: HTTP 403")
    assert "chart" in wrong
    assert TAINT in cluster.taints
    assert cluster.events()


async def test_whoever_looks_at_the_node_sees_that_it_could_not_be_closed(
    cluster: Cluster, make: Make
) -> None:
    cluster.kube.faults = [Fault("PATCH", f"/nodes/{NODE}", status=403, times=1)]
    cordon = make()

    wrong = await close(cordon)
    assert wrong is not None
    assert not isinstance(wrong, Unanswered)
    told = {each["reason"]: each["message"] for each in cluster.events()}
    assert sorted(told) == ["CordonError", "NoticeReceived"]
    assert told["CordonError"].startswith("not cordoned: cordon: HTTP 403")


async def test_nobody_is_told_of_an_uncordon_that_was_refused(cluster: Cluster, make: Make) -> None:
    cordon = make()
    await close(cordon)
    cluster.kube.faults = [Fault("PATCH", f"/nodes/{NODE}", status=403, times=1)]

    assert await cordon.reopen(ORDER, reason="cancelled") is not None
    told = {each["reason"]: each["message"] for each in cluster.events()}
    assert sorted(told) == ["NoticeReceived", "UncordonError"]
    assert "not uncordoned: uncordon: HTTP 403" in told["UncordonError"]
    assert cluster.node["spec"]["unschedulable"] is True


async def test_threads_that_are_all_busy_keep_the_node_open_for_nobody(
    cluster: Cluster, make: Make
) -> None:
    """Names that nobody resolves any more hold the loop's threads, and so do sums of what is flushed."""
    async with no_thread_left():
        assert await close(make(timeout_seconds=10.0)) is None


async def test_a_server_that_is_slow_costs_no_more_than_the_limit(
    cluster: Cluster, make: Make
) -> None:
    cluster.kube.faults = [Fault(slow=5.0)]

    wrong = await close(make(timeout_seconds=0.7))

    assert isinstance(wrong, Unanswered)
    for each in ("cordon", "condition", "event"):
        assert f"{each}: not done within 0.7 s" in wrong


async def test_a_reopen_that_needs_several_tries_tells_that_it_opened(
    cluster: Cluster, make: Make
) -> None:
    assert await close(make()) is None
    cluster.kube.faults = [Fault("PATCH", f"/nodes/{NODE}/status", status=503)]
    cordon = make(timeout_seconds=1.0)

    async with asyncio.timeout(60):
        while "unschedulable" in cluster.node["spec"]:
            assert isinstance(await cordon.reopen(ORDER, reason="cancelled"), Unanswered)
        cluster.kube.faults = []
        while await cordon.reopen(ORDER, reason="cancelled") is not None:
            pass

    assert [each["reason"] for each in cluster.events()] == ["NoticeReceived", "Uncordon"]


async def test_what_was_opened_under_one_order_is_not_told_under_another(
    cluster: Cluster, make: Make
) -> None:
    cordon = make()
    await close(cordon)
    await cordon.reopen(ORDER, reason="cancelled")
    await cordon.reopen(replace(ORDER, id="ab12-2"), reason="cancelled")

    told = [each["reason"] for each in cluster.events()]
    assert sorted(told) == ["NoticeCancelled", "NoticeReceived", "Uncordon"]


async def test_a_server_that_is_gone_is_told(cluster: Cluster, make: Make) -> None:
    nowhere = replace(cluster.access, url="https://127.0.0.1:1")

    wrong = await close(make(access=nowhere, timeout_seconds=2.0))

    assert wrong is not None
    assert "no connection: Connection refused" in wrong


async def test_a_certificate_of_another_s_is_told(cluster: Cluster, make: Make) -> None:
    wrong_name = replace(cluster.access, url=cluster.access.url.replace("127.0.0.1", "localhost"))

    wrong = await close(make(access=wrong_name, timeout_seconds=2.0))
    assert wrong is not None
    assert "certificate" in wrong


async def test_a_node_that_is_not_there_is_told(make: Make) -> None:
    wrong = await close(make(node="gpu-8"))

    assert wrong is not None
    assert 'nodes "gpu-8" not found' in wrong
    assert "NODE_NAME" in wrong


async def test_report_only_tells_and_touches_nothing(cluster: Cluster, make: Make) -> None:
    before = cluster.node["spec"]
    cordon = make(report_only=True)

    assert await close(cordon) is None
    assert cluster.node["spec"] == before
    assert cluster.conditions()["EvacLeaving"] == "True"
    assert await cordon.reopen(ORDER, reason="cancelled") is None
    assert cluster.node["spec"] == before
    assert cluster.conditions()["EvacLeaving"] == "False"


async def test_another_handler_s_marks_are_named(cluster: Cluster, make: Make) -> None:
    taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
    await cluster.edit(lambda node: node["spec"]["taints"].append(taint))

    with capture_logs() as logs:
        assert await close(make()) is None
    (told,) = [each for each in logs if each["event"] == "cordon.others"]
    assert told["handlers"] == ["aws-node-termination-handler"]
    assert "report-only" in told["cure"]


async def test_another_handler_s_marks_are_seen_at_the_start_and_by_a_check(
    cluster: Cluster, make: Make
) -> None:
    await cluster.edit(
        lambda node: node["metadata"].update(annotations={"quarantineHealthEvent": "x"})
    )

    with capture_logs() as logs:
        assert await make().cordon.left_over() is None
    assert [each["handlers"] for each in logs] == [["NVSentinel"]]
    cordon = make().cordon
    assert await cordon.rehearse() is None
    assert cordon.others == ("NVSentinel",)


async def test_what_an_earlier_boot_left_closed_is_known(cluster: Cluster, make: Make) -> None:
    assert await make().cordon.left_over() is None
    assert await make().telling.left_over() is None
    await close(make(boot="boot-1"))

    assert await make(boot="boot-2").cordon.left_over() == "boot-1"
    assert await make(boot="boot-2").telling.left_over() == "boot-1"


async def test_what_only_tells_is_known_by_its_condition_after_a_new_boot(
    cluster: Cluster, make: Make
) -> None:
    await close(make(boot="boot-1", report_only=True))
    later = make(boot="boot-2", report_only=True)

    assert await later.cordon.left_over() is None
    assert await later.telling.left_over() == "boot-1"
    assert await later.reopen(ORDER, reason="the node has booted again") is None
    assert cluster.conditions()["EvacLeaving"] == "False"
    assert await later.telling.left_over() is None


async def test_a_condition_without_a_cordon_is_known_after_a_new_boot(
    cluster: Cluster, make: Make
) -> None:
    """The node's patch was refused, and its status' was not."""
    cluster.kube.faults = [Fault("PATCH", f"/nodes/{NODE}", status=403, times=1)]
    wrong = await close(make(boot="boot-1"))
    assert wrong is not None
    assert wrong.startswith("cordon: HTTP 403")
    assert ANNOTATION not in cluster.node["metadata"].get("annotations", {})

    assert await make(boot="boot-2").cordon.left_over() is None
    assert await make(boot="boot-2").telling.left_over() == "boot-1"


async def test_what_only_tells_undoes_what_it_closed_before(cluster: Cluster, make: Make) -> None:
    await close(make(boot="boot-1"))

    assert await make(boot="boot-2", report_only=True).reopen(ORDER, reason="booted") is None
    assert TAINT not in cluster.taints
    assert "unschedulable" not in cluster.node["spec"]


async def test_an_amendment_is_no_transition(cluster: Cluster, make: Make) -> None:
    cordon = make()
    await close(cordon)

    def old(node: Object) -> None:
        node["status"]["conditions"][1]["lastTransitionTime"] = "2026-01-01T00:00:00Z"

    await cluster.edit(old)
    await cordon.telling.amended(replace(ORDER, amendments=1), seconds_left=5.0)
    assert cluster.node["status"]["conditions"][1]["lastTransitionTime"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("status", [403, 503])
async def test_it_is_looked_for_until_the_server_answers(
    cluster: Cluster, make: Make, status: int
) -> None:
    await close(make(boot="boot-1"))
    cluster.kube.faults = [Fault("GET", status=status, times=8)]

    with capture_logs() as logs:
        later = make(boot="boot-2", timeout_seconds=0.2, look_again_seconds=0.01).cordon
        assert await later.left_over() == "boot-1"
    assert [each["event"] for each in logs].count("cordon.unknown") == 1


class NoNames(AbstractResolver):
    """A machine whose name service is gone already."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        raise OSError(f"nobody knows {host} any more")

    async def close(self) -> None:
        pass


async def test_a_name_service_that_is_gone_is_not_missed(cluster: Cluster) -> None:
    host, _, port = cluster.access.url.removeprefix("https://").partition(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    access = in_cluster(environ, account=cluster.access.token_file.parent)
    assert access == cluster.access
    connector = aiohttp.TCPConnector(resolver=NoNames())

    async with aiohttp.ClientSession(connector=connector) as session:
        cordon = KubernetesCordon(
            Client(session, access), node=NODE, boot="b", timeout_seconds=20.0
        )
        assert await cordon.close(ORDER, seconds_left=29.8) is None


async def test_a_proxy_of_the_environment_is_never_asked(cluster: Cluster) -> None:
    async with aiohttp.ClientSession(trust_env=True) as session:
        with pytest.raises(ValueError, match="proxy"):
            Client(session, cluster.access)
