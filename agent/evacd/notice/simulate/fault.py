"""One thing that can be wrong with a metadata service, and how it is said in a line. Pure.

``KIND[=ARGUMENT][@PATH][,first=N][,after=S][,for=S][,chance=P]``:
``status=503@instance/preempted,first=3`` answers the first three requests for that key with
503. A path is a glob, against the whole path or its end; without one, every request counts.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "status": "answer with this status, as the service would (403, 404, 410, 429, 500, 503)",
        "html": "answer 200 with a page, as a captive portal does",
        "redirect": "answer 302 to another host",
        "empty": "answer 200 with nothing in it",
        "malformed": "answer 200 with the beginning of a JSON object",
        "garbage": "answer 200 with bytes that are no text",
        "too-large": "answer 200 with more than any client should read",
        "truncated": "break the connection in the middle of the body",
        "reset": "reset the connection before the answer",
        "drip": "send a byte now and then, for ever",
        "slow": "answer truly, so many seconds later",
        "never": "hold the connection and never answer",
        "rate": "answer 429 to what is more than so many requests in a second",
        "hang-503": "end hanging GETs with 503, so many seconds later (0)",
        "hang-never": "never end a hanging GET",
        "no-flavor": "answer truly, without the header Metadata-Flavor",
        "no-etag": "answer truly, without the header ETag",
    }
)
# Kinds that take a number; the default, or None where it must be given.
_ARGUMENTS: Mapping[str, float | None] = MappingProxyType(
    {"status": None, "slow": None, "rate": None, "hang-503": 0.0}
)
GRAMMAR = "KIND[=ARGUMENT][@PATH][,first=N][,after=SECONDS][,for=SECONDS][,chance=0..1]"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        kind: Of `KINDS`.
        argument: A status, seconds, or requests per second, as the kind needs; else 0.
        path: Glob, against the whole path or its end.
        first: So many matching requests; None for all.
        after: Seconds from when the fault was set.
        lasting: Seconds from then; None for ever.
        chance: That a matching request meets it.
    """

    kind: str
    argument: float = 0.0
    path: str = "*"
    first: int | None = None
    after: float = 0.0
    lasting: float | None = None
    chance: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError where it cannot be."""
        if self.kind not in KINDS:
            raise ValueError(f"expected a kind of fault ({', '.join(KINDS)}), not {self.kind!r}")
        if self.kind == "status" and not (
            200 <= self.argument <= 599 and self.argument == int(self.argument)
        ):
            raise ValueError(f"expected a status from 200 to 599, not {self.argument:g}")
        if self.kind == "rate" and self.argument < 1:
            raise ValueError(f"expected at least 1 request in a second, not {self.argument:g}")

    def matches(self, path: str) -> bool:
        """It concerns requests for *path*."""
        return fnmatch.fnmatchcase(path, self.path) or fnmatch.fnmatchcase(path, f"*/{self.path}")


def parse(text: str) -> Fault:
    """Read one line.

    Raises:
        ValueError: Says what was expected.
    """
    head, *options = text.split(",")
    head, _, path = head.partition("@")
    kind, given, argument = head.replace(":", "=", 1).partition("=")
    kind = kind.strip()
    values: dict[str, float] = {}
    for option in options:
        name, _, value = option.strip().partition("=")
        if name not in {"first", "after", "for", "chance"} or name in values:
            raise ValueError(f"expected {GRAMMAR}, not {option.strip()!r} in {text!r}")
        most = 1.0 if name == "chance" else 1e9
        values[name] = _number(value, name, most=most, whole=name == "first")
    if kind in KINDS and given and kind not in _ARGUMENTS:
        raise ValueError(f"{kind} takes no argument, not {argument!r}")
    default = _ARGUMENTS.get(kind, 0.0)
    if not given and default is None:
        raise ValueError(f"expected {kind}=NUMBER, not {text!r}")
    first = values.get("first")
    return Fault(
        kind=kind,
        argument=_number(argument, kind, most=1e9) if given else default or 0.0,
        path=path.strip() or "*",
        first=None if first is None else int(first),
        after=values.get("after", 0.0),
        lasting=values.get("for"),
        chance=values.get("chance", 1.0),
    )


def _number(text: str, name: str, *, most: float, whole: bool = False) -> float:
    kind = "whole number" if whole else "number"
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    # Not a number compares false, too.
    if not 0 <= number <= most or (whole and number != int(number)):
        raise ValueError(f"expected a {kind} from 0 to {most:g} for {name}, not {text!r}")
    return number
