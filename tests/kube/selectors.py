"""Label and field selectors, as a list's query has them. Pure."""

import re
from collections.abc import Mapping
from typing import Any

_SET = re.compile(r"^\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*$")


def labelled(thing: Mapping[str, Any], selector: str) -> bool:
    """Its labels are as *selector* wants them."""
    labels = thing["metadata"].get("labels") or {}
    # A comma in parentheses belongs to a set.
    wants = re.split(r",(?![^(]*\))", selector) if selector else []
    return all(_meets(labels, want.strip()) for want in wants)


def _meets(labels: Mapping[str, str], want: str) -> bool:
    if found := _SET.match(want):
        key, word, values = found[1], found[2], [each.strip() for each in found[3].split(",")]
        return (labels.get(key) in values) is (word == "in")
    if "!=" in want:
        key, _, value = want.partition("!=")
        return labels.get(key) != value
    if "=" in want:
        key, _, value = want.replace("==", "=").partition("=")
        return labels.get(key) == value
    return (want.lstrip("!") in labels) is not want.startswith("!")


def fielded(thing: Mapping[str, Any], selector: str) -> bool:
    """Its fields are as *selector* wants them."""
    for want in selector.split(",") if selector else []:
        path, unlike, value = want.partition("!=") if "!=" in want else want.partition("=")
        found: Any = thing
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if (str(found or "") == value.lstrip("=")) is (unlike == "!="):
            return False
    return True
