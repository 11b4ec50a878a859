"""Kinds of values with parts: dates, policies by event code, rules of node marks."""

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from evacd.config.kinds import Kind, WrongValue

# The words of `evacd.notice.aws.Policy`, `evacd.notice.node.Where` and `evacd.facts.Confidence`.
POLICY_WORDS = ("early", "planned", "advise", "ignore")
WHERE_WORDS = ("label", "taint", "condition", "cordon")
CONFIDENCE_WORDS = ("advisory", "planned", "certain", "started")


class WrongEntry(WrongValue):
    """One entry of several is wrong.

    Attributes:
        path: Below the setting's key: ``("1", "confidence")``.
        expected: What is right there.
    """

    def __init__(self, *path: str, expected: str) -> None:
        super().__init__(expected)
        self.path = path
        self.expected = expected


@dataclass(frozen=True)
class NodeRule:
    """A mark on the Kubernetes node that is a notice; as `evacd.notice.node.Rule`."""

    kind: str
    where: str
    key: str
    confidence: str
    value: str = "*"
    effect: str = "*"
    message: str = "*"
    window_seconds: float | None = None


def _date(value: object) -> datetime | None:
    if value == "":
        return None
    try:
        date = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        raise WrongValue from error
    if not isinstance(date, datetime) or date.tzinfo is None:
        raise WrongValue
    return date


def _policies(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise WrongValue
    for code, policy in value.items():
        if policy not in POLICY_WORDS:
            raise WrongEntry(code, expected=f"{code}: {_one_of(POLICY_WORDS)}")
        if not _is_word(code):
            raise WrongEntry(code, expected="codes such as instance-stop")
    return tuple(value.items())


def _policies_text(text: str) -> dict[str, str]:
    pairs = [one.partition("=") for part in text.split(",") if (one := part.strip())]
    if not all(equals for _, equals, _ in pairs):
        raise WrongValue
    return {code.strip(): policy.strip() for code, _, policy in pairs}


def _rules(value: object) -> tuple[NodeRule, ...]:
    if not isinstance(value, list):
        raise WrongValue
    return tuple(_rule(entry, str(number)) for number, entry in enumerate(value))


_RULE = {one.name: one.default for one in dataclasses.fields(NodeRule)}
_RULE_WORDS: Mapping[str, Collection[str]] = {
    "where": WHERE_WORDS,
    "confidence": CONFIDENCE_WORDS,
}


def _rule(entry: object, number: str) -> NodeRule:
    if not isinstance(entry, Mapping):
        raise WrongEntry(number, expected="a table for each rule")
    for name, value in entry.items():
        if name not in _RULE:
            raise WrongEntry(number, name, expected=f"a rule has no {name}: {', '.join(_RULE)}")
        if name == "window_seconds":
            if type(value) not in {int, float} or not 0 <= value < float("inf"):
                raise WrongEntry(number, name, expected="a rule's window_seconds is 0 or more")
        elif not isinstance(value, str) or "\0" in value:
            raise WrongEntry(number, name, expected=f"a rule's {name} is text in quotes")
        elif value not in _RULE_WORDS.get(name, (value,)):
            raise WrongEntry(
                number, name, expected=f"a rule's {name} is {_one_of(_RULE_WORDS[name])}"
            )
    for name, default in _RULE.items():
        # Of a cordon no key is needed: it is the mark itself.
        needed = default is dataclasses.MISSING and not (
            name == "key" and entry.get("where") == "cordon"
        )
        if needed and not entry.get(name):
            raise WrongEntry(number, expected=f"a rule has its {name}")
    if not _is_word(entry["kind"]):
        raise WrongEntry(number, "kind", expected="a rule's kind is a word such as site/reclaim")
    window = entry.get("window_seconds")
    return NodeRule(
        **{"key": "", **entry, "window_seconds": None if window is None else float(window)}
    )


def _rules_text(text: str) -> Any:
    return json.loads(text)


def _rules_shown(rules: tuple[NodeRule, ...]) -> str:
    return ", ".join(f"{rule.where} {rule.key}={rule.value}" for rule in rules)


def _is_word(value: object) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= 64
        and value.isascii()
        and value.isprintable()
        and " " not in value
    )


def _one_of(words: Collection[str]) -> str:
    return "one of " + ", ".join(f'"{word}"' for word in words)


DATE = Kind(
    'a date with its offset, such as "2026-03-01T11:30:00Z", or "" for none', _date, metavar="DATE"
)
POLICIES = Kind(
    'policies by event code, such as {instance-stop = "early"}',
    _policies,
    _policies_text,
    metavar="CODE=POLICY,...",
    show=lambda pairs: ",".join(f"{code}={policy}" for code, policy in pairs),
)
RULES = Kind(
    "tables that begin with [[node.rules]]", _rules, _rules_text, metavar="JSON", show=_rules_shown
)
