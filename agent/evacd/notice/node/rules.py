"""Which marks on a node object are notices, read from the object. Pure.

Whoever reclaims a Kubernetes node marks it first: a label, a taint or a condition. A rule
names such a mark; `read` says which rules a node object meets. Whatever the object looks
like, nothing is raised, and nothing but a mark of the right shape is taken for one.

Sources: kubernetes.io/docs/reference/node/node-status and …/concepts/scheduling-eviction/
taint-and-toleration; kubernetes/kubernetes core/v1 (Node, Taint, NodeCondition). Read 2026-10.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase

from evacd.facts import Confidence
from evacd.notice.node.aks import date_in

_DETAIL_LIMIT = 200


class Where(StrEnum):
    """What kind of mark it is."""

    LABEL = "label"
    TAINT = "taint"
    CONDITION = "condition"
    CORDON = "cordon"


@dataclass(frozen=True)
class Rule:
    """One mark that announces something. Patterns are shell globs that match the whole text.

    Attributes:
        kind: The notice's kind; short and stable.
        where: Label, taint, condition, or `spec.unschedulable` itself.
        key: The label's or taint's key, the condition's type; for a cordon a label's key that
            the node must carry, "" for any node.
        value: Of the label (for a cordon: of that label) or taint; a condition's status.
        effect: Of the taint.
        message: Of the condition.
        confidence: What it may start.
        window_seconds: From its first sight to the end, at the most; None where no time is
            given. A dated mark ends at its date if that is earlier.
        dated: The condition's message holds the date; where it cannot be read, it is now.
    """

    kind: str
    where: Where
    key: str
    confidence: Confidence
    value: str = "*"
    effect: str = "*"
    message: str = "*"
    window_seconds: float | None = None
    dated: bool = False

    @property
    def mark(self) -> str:
        """What is marked: rules of one mark are alternatives, the first that is met counts."""
        return f"{self.where}:{self.key}"


@dataclass(frozen=True)
class Match:
    """One rule that a node meets.

    Attributes:
        date: From the message of a dated rule; None where there is none to read.
        detail: For people; printable and short.
    """

    rule: Rule
    date: datetime | None = None
    detail: str = ""


@dataclass(frozen=True)
class Marks:
    """What a node object says.

    Attributes:
        matches: At most one per mark, in the order of the rules.
        unclear: Marks that are neither there nor gone: a condition whose status is Unknown.
        shutting_down: The kubelet says that this machine shuts down.
    """

    matches: tuple[Match, ...] = ()
    unclear: frozenset[str] = frozenset()
    shutting_down: bool = False


def read(node: object, rules: Iterable[Rule]) -> Marks:
    """What *node*, a decoded Node object, says by these *rules*."""
    labels = _texts(_at(node, "metadata", "labels"))
    taints = [_texts(each) for each in _items(_at(node, "spec", "taints"))]
    conditions = [_texts(each) for each in _items(_at(node, "status", "conditions"))]
    cordoned = _at(node, "spec", "unschedulable") is True
    matches: dict[str, Match] = {}
    unclear: set[str] = set()
    for rule in rules:
        if rule.mark in matches:
            continue
        match rule.where:
            case Where.LABEL:
                found = _label(rule, labels)
            case Where.TAINT:
                found = next(filter(None, (_taint(rule, each) for each in taints)), None)
            case Where.CONDITION:
                mine = [each for each in conditions if each.get("type") == rule.key]
                if any(each.get("status") not in ("True", "False") for each in mine):
                    unclear.add(rule.mark)
                found = next(filter(None, (_condition(rule, each) for each in mine)), None)
            case Where.CORDON:
                found = _cordon(rule, labels) if cordoned else None
        if found is not None:
            matches[rule.mark] = found
    return Marks(
        matches=tuple(matches.values()),
        unclear=frozenset(unclear - matches.keys()),
        shutting_down=any(_says_shutting_down(each) for each in conditions),
    )


def _label(rule: Rule, labels: Mapping[str, str]) -> Match | None:
    value = labels.get(rule.key)
    if value is None or not fnmatchcase(value, rule.value):
        return None
    return Match(rule, detail=_short(f"label {rule.key}={value}"))


def _taint(rule: Rule, taint: Mapping[str, str]) -> Match | None:
    value, effect = taint.get("value", ""), taint.get("effect", "")
    if taint.get("key") != rule.key:
        return None
    if not fnmatchcase(value, rule.value) or not fnmatchcase(effect, rule.effect):
        return None
    shown = f"{rule.key}={value}" if value else rule.key
    return Match(rule, detail=_short(f"taint {shown}:{effect}"))


def _condition(rule: Rule, condition: Mapping[str, str]) -> Match | None:
    status = condition.get("status", "")
    message = " ".join(condition.get("message", "").split())
    if not fnmatchcase(status, rule.value) or not fnmatchcase(message, rule.message):
        return None
    date = date_in(message) if rule.dated else None
    return Match(rule, date, _short(f"condition {rule.key} is {status}: {message}"))


def _cordon(rule: Rule, labels: Mapping[str, str]) -> Match | None:
    if not rule.key:
        return Match(rule, detail="the node is cordoned")
    value = labels.get(rule.key)
    if value is None or not fnmatchcase(value, rule.value):
        return None
    return Match(rule, detail=_short(f"the node is cordoned and has {rule.key}={value}"))


def _says_shutting_down(condition: Mapping[str, str]) -> bool:
    return (
        condition.get("type") == "Ready"
        and condition.get("status") == "False"
        and "node is shutting down" in condition.get("message", "").lower()
    )


def _at(node: object, *path: str) -> object:
    for step in path:
        node = node.get(step) if isinstance(node, Mapping) else None
    return node


def _items(found: object) -> Sequence[object]:
    return found if isinstance(found, list) else []


def _texts(found: object) -> Mapping[str, str]:
    """Only what is text under a text key; null counts as absent, as in Go."""
    if not isinstance(found, Mapping):
        return {}
    return {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, str)}


def _short(text: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable[:_DETAIL_LIMIT]
