"""The marks that are known, with what is known about each. Data only.

*documented*: the name stands in its owner's documentation or source. None of them was seen
on a real cluster by this project. Windows are the shortest that the owner promises; where it
promises none, they are our assumption, and said to be. A site's own rules go before these.
"""

from evacd.facts import Confidence
from evacd.notice.node.rules import Rule, Where

ADVISORY, PLANNED = Confidence.ADVISORY, Confidence.PLANNED
CERTAIN, STARTED = Confidence.CERTAIN, Confidence.STARTED

COREWEAVE = (
    # documented: docs.coreweave.com/platform/capacity-plans/spot-node-pools. The node is
    # drained when the customer's own warning window ends: set the rule's window to it. 120 s
    # is assumed.
    Rule(
        kind="coreweave/preempt",
        where=Where.LABEL,
        key="qos.coreweave.cloud/pending-preemption",
        value="true",
        confidence=CERTAIN,
        window_seconds=120.0,
    ),
)

TOGETHER = (
    # documented: docs.together.ai/docs/preemptible-compute. A reclaim shows on the node only as
    # a cordon, five minutes "at most"; the label says that it is preemptible at all. A person's
    # cordon looks the same, and so does our own, so it advises and orders nothing; the proper
    # sign, the event TogetherPreemptionNotified, is not on the node object.
    Rule(
        kind="together/cordon",
        where=Where.CORDON,
        key="together.ai/compute-class",
        value="preemptible",
        confidence=ADVISORY,
        window_seconds=300.0,
    ),
)

KARPENTER = (
    # documented: kubernetes-sigs/karpenter, website/…/concepts/disruption. How long the node
    # then lives depends on what is drained from it; 120 s, the notice of a spot instance, is
    # assumed. Taken off again where the disruption is given up.
    Rule(
        kind="karpenter/disrupt",
        where=Where.TAINT,
        key="karpenter.sh/disrupted",
        effect="NoSchedule",
        confidence=CERTAIN,
        window_seconds=120.0,
    ),
)

AUTOSCALER = (
    # documented: kubernetes/autoscaler, cluster-autoscaler/utils/taints. An empty node goes
    # within seconds, one with pods after its drain; 60 s is assumed. The value is a time, and
    # so no part of the notice's identity. (DeletionCandidateOf… is no decision yet.)
    Rule(
        kind="autoscaler/scale-down",
        where=Where.TAINT,
        key="ToBeDeletedByClusterAutoscaler",
        confidence=CERTAIN,
        window_seconds=60.0,
    ),
)

GKE = (
    # documented: GoogleCloudPlatform/k8s-node-termination-handler (flag --taint) and GKE's
    # graceful termination for GPUs. It may be an hour or 30 s; 30 s is what is sure.
    Rule(
        kind="gke/terminate",
        where=Where.TAINT,
        key="cloud.google.com/impending-node-termination",
        confidence=CERTAIN,
        window_seconds=30.0,
    ),
)


def _azure(condition: str, event: str, status: str, confidence: Confidence) -> Rule:
    windows = {("Preempt", "Scheduled"): 30.0, (event, "Started"): 0.0}
    return Rule(
        kind=f"aks/{event.lower()}",
        where=Where.CONDITION,
        key=condition,
        value="True",
        message=f"{event} {status}*",
        confidence=confidence,
        # A preemption's date is best effort, and 30 s are the least that Azure gives. What has
        # begun is now, and so is a date that cannot be read.
        window_seconds=windows.get((event, status)),
        dated=status == "Scheduled",
    )


def _other(condition: str) -> Rule:
    """What nobody has described yet: worth telling, no ground for an order."""
    return Rule(
        kind="aks/other",
        where=Where.CONDITION,
        key=condition,
        value="True",
        confidence=ADVISORY,
    )


AKS = (
    # documented: learn.microsoft.com/azure/aks/node-problem-detector and Azure's Karpenter
    # provider, which reads the same messages. The condition and its reason are the same for an
    # advice and a preemption: only the message's first words tell them apart.
    _azure("PreemptionScheduled", "SpotRebalanceRecommendation", "Advisory", ADVISORY),
    _azure("PreemptionScheduled", "Preempt", "Started", STARTED),
    _azure("PreemptionScheduled", "Preempt", "Scheduled", CERTAIN),
    _other("PreemptionScheduled"),
    # This one carries every scheduled event of the VM, a pause among them.
    _azure("VMEventScheduled", "Preempt", "Started", STARTED),
    _azure("VMEventScheduled", "Preempt", "Scheduled", CERTAIN),
    _azure("VMEventScheduled", "Terminate", "Started", STARTED),
    _azure("VMEventScheduled", "Terminate", "Scheduled", CERTAIN),
    _azure("VMEventScheduled", "Redeploy", "Started", STARTED),
    _azure("VMEventScheduled", "Redeploy", "Scheduled", CERTAIN),
    _azure("VMEventScheduled", "Reboot", "Started", STARTED),
    _azure("VMEventScheduled", "Reboot", "Scheduled", PLANNED),
    _azure("VMEventScheduled", "Freeze", "*", ADVISORY),
    _other("VMEventScheduled"),
)

KUBELET = (
    # documented: kubernetes/kubernetes pkg/kubelet/nodeshutdown. The kubelet delays the
    # shutdown for its own pods; 15 s, what is left to regular pods of the usual 30, is assumed.
    Rule(
        kind="kubelet/shutdown",
        where=Where.CONDITION,
        key="Ready",
        value="False",
        message="*node is shutting down*",
        confidence=STARTED,
        window_seconds=15.0,
    ),
)

DEFAULT_RULES = COREWEAVE + TOGETHER + KARPENTER + AUTOSCALER + GKE + AKS + KUBELET
