"""The chart on several pools, and with values as people type them."""

import kubernetes_validate  # type: ignore[import-untyped]  # it ships none

from tests.container.test_chart import STORE, helm, objects, pod, rendered
from tests.kube.answers import SCHEMAS
from tests.kube.cluster import CHART


def test_what_has_to_be_a_string_is_one_however_it_was_given(binaries: None) -> None:
    """``--set nodeSelector.spot=true`` is a boolean, which no API server takes."""
    made = rendered(
        "nodeSelector.spot=true",
        "podLabels.azure\\.workload\\.identity/use=true",
        "podAnnotations.port=9911",
        "serviceAccount.annotations.on=true",
        "podMonitor.enabled=true",
        "podMonitor.labels.release=1",
        "cpu.request=2",
    )

    assert pod(made)["nodeSelector"] == {"spot": "true"}
    template = made["DaemonSet/evac"]["spec"]["template"]["metadata"]
    assert template["labels"]["azure.workload.identity/use"] == "true"
    assert template["annotations"]["port"] == "9911"
    assert made["ServiceAccount/evac"]["metadata"]["annotations"] == {"on": "true"}
    assert made["PodMonitor/evac"]["metadata"]["labels"]["release"] == "1"
    for what, thing in made.items():
        if not what.startswith("PodMonitor/"):
            kubernetes_validate.validate(thing, SCHEMAS, strict=True)


def test_each_pool_may_have_a_release_of_its_own(binaries: None) -> None:
    """Two pools, two budgets, one namespace: no object is both releases', and no pod either one's."""
    found = []
    for pool, budget in (("a100", 900), ("l4", 48)):
        values = ("--set", f"nodeSelector.pool={pool},memory.budgetGiB={budget}", "--set", STORE)
        done = helm("template", f"evac-{pool}", str(CHART), "--namespace", "evac", *values)
        assert done.returncode == 0, done.stderr
        found.append(objects(done.stdout))

    assert not set(found[0]) & set(found[1])
    selectors = [
        next(each for what, each in one.items() if what.startswith("DaemonSet/"))["spec"][
            "selector"
        ]
        for one in found
    ]
    assert selectors[0] != selectors[1]
