"""Kinds of values: how a setting is read from a file, the environment or a flag.

The environment and flags give text; `Kind.parse` turns it into what the TOML file would have
held, and `Kind.check` is then the same for all three.
"""

import ipaddress
import math
import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evac.rendezvous.address import parse as parse_address

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGTP", start=1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")


class WrongValue(ValueError):
    """Not of its kind; the loader says what was expected, and where."""


@dataclass(frozen=True)
class Kind:
    """One way to read a value.

    Attributes:
        expected: What is right, for messages: ``a number of seconds, 0 or more``.
        check: From a TOML value to the field's; raises `WrongValue`.
        parse: From text to a TOML value; raises ValueError.
        metavar: What stands for the value in the help: ``SECONDS``.
        shown: A wrong value may be repeated in a message: it cannot hold a secret.
        repeated: The flag may be given more than once.
        flag: The flag stands alone, without a value.
        show: A value as people read it; None where its text will do.
    """

    expected: str
    check: Callable[[object], Any]
    parse: Callable[[str], object] = str
    metavar: str = "TEXT"
    shown: bool = True
    repeated: bool = False
    flag: bool = False
    show: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class Budget:
    """How much memory staged state may take: a share of what is available, or a size.

    Attributes:
        share: Of MemAvailable, in 0 < share <= 1; None where `nbytes` counts.
        nbytes: A fixed number of bytes; None where `share` counts.
    """

    share: Fraction | None = None
    nbytes: int | None = None

    def resolve(self, available: int) -> int:
        """Bytes, given *available* bytes (MemAvailable at the daemon's start)."""
        return int(available * self.share) if self.share is not None else self.nbytes or 0

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read ``50%``, ``64GiB``, ``512 MB`` or plain bytes.

        Raises:
            WrongValue: Neither, or outside 0 < share <= 100%.
        """
        if found := _PERCENT.fullmatch(text.strip()):
            share = Fraction(found[1]) / 100
            if not 0 < share <= 1:
                raise WrongValue
            return cls(share=share)
        found = _SIZE.fullmatch(text.strip())
        if found is None or found[2] not in _UNITS or not Fraction(found[1]):
            raise WrongValue
        return cls(nbytes=math.ceil(Fraction(found[1]) * _UNITS[found[2]]))

    def __str__(self) -> str:
        return f"{float(self.share * 100):g}%" if self.share is not None else f"{self.nbytes}"


def _text(value: object) -> str:
    # NUL ends a C string: such a path or argument would be another one to the kernel.
    if not isinstance(value, str) or "\0" in value:
        raise WrongValue
    return value


def _budget(value: object) -> Budget:
    if type(value) is int:
        value = str(value)
    return Budget.parse(_text(value))


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise WrongValue
    return value


def _boolean_text(text: str) -> bool:
    try:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[
            text.strip().lower()
        ]
    except KeyError:
        raise WrongValue from None


def _mode(value: object) -> int:
    text = _text(value).removeprefix("0o")
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise WrongValue
    return int(text, 8)


def _path(value: object) -> Path:
    path = Path(_text(value))
    if not path.is_absolute():
        raise WrongValue
    return path


def _some_path(value: object) -> Path | None:
    return _path(value) if value else None


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise WrongValue
    if not all(_text(one) for one in value):
        raise WrongValue
    return tuple(value)


def _comma(text: str) -> list[str]:
    return [one for part in text.split(",") if (one := part.strip())]


def _store_urls(value: object) -> tuple[str, ...]:
    urls = _texts(value)
    if not all(re.fullmatch(r"[a-z][a-z0-9+.-]*://\S.*", one) for one in urls):
        raise WrongValue
    return urls


def _meeting_places(value: object) -> tuple[str, ...]:
    return tuple(str(parse_address(one)) for one in _texts(value))


def _etcd_urls(value: object) -> tuple[str, ...]:
    urls = tuple(_http_url(one).rstrip("/") for one in _texts(value))
    for one in urls:
        parts = urlsplit(one)
        if parts.path or parts.query or parts.fragment or parts.username or parts.password:
            raise WrongValue
    return urls


def _http_url(value: object) -> str:
    text = _text(value)
    parts = urlsplit(text)  # ValueError where it is malformed
    if parts.scheme not in {"http", "https"} or not parts.hostname or re.search(r"\s", text):
        raise WrongValue
    _ = parts.port  # ValueError where it is out of range
    return text


def _metadata_root(value: object) -> str:
    url = _http_url(value).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.path or parts.query or parts.fragment or parts.username:
        raise WrongValue
    # A name could be resolved to another host, whose notices are not ours.
    if parts.hostname != "localhost":
        ipaddress.ip_address(parts.hostname or "")  # ValueError where it is a name
    return url


def _some_metadata_root(value: object) -> str:
    return _metadata_root(value) if value != "" else ""


def _address(value: object) -> str:
    return str(ipaddress.ip_address(_text(value)))  # ValueError where it is none


def _some_listen(value: object) -> str:
    text = _text(value)
    if text:
        host, colon, port = text.rpartition(":")
        address = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise WrongValue
        if ipaddress.ip_address(address).version == 6 and address == host:
            raise WrongValue
    return text


def _some_http_url(value: object) -> str:
    return _http_url(value) if value != "" else ""


def _some_notice_url(value: object) -> str:
    text = _some_http_url(value)
    parts = urlsplit(text)
    # What `evacd.notice.user.http` would refuse, once it were begun.
    if parts.username or parts.password or parts.fragment or not text.isprintable():
        raise WrongValue
    return text


def number(what: str, low: float, *, above: bool = False) -> Kind:
    """A finite number of *what*, *low* or more (or only more, where *above*)."""

    def check(value: object) -> float:
        if type(value) not in {int, float} or not isinstance(value, int | float):
            raise WrongValue
        if not math.isfinite(value) or value < low or (above and value == low):
            raise WrongValue
        return float(value)

    bound = f"more than {low:g}" if above else f"{low:g} or more"
    return Kind(f"{what}, {bound}", check, float, metavar=what.split(" ", maxsplit=1)[0].upper())


def count(low: int, high: int) -> Kind:
    """A whole number in *low* .. *high*."""

    def check(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise WrongValue
        return value

    return Kind(f"a whole number from {low} to {high}", check, int, metavar="NUMBER")


def choice(words: Collection[str]) -> Kind:
    """One of *words*."""

    def check(value: object) -> str:
        if value not in words:
            raise WrongValue
        return _text(value)

    expected = "one of " + ", ".join(f'"{word}"' for word in words)
    return Kind(expected, check, metavar="|".join(words))


TEXT = Kind("text in quotes", _text)
BOOLEAN = Kind("true or false", _boolean, _boolean_text, flag=True)
MODE = Kind('an octal file mode in quotes, such as "0660"', _mode, metavar="MODE")
PATH = Kind("an absolute path in quotes", _path, metavar="PATH")
SOME_PATH = Kind('an absolute path in quotes, or "" for none', _some_path, metavar="PATH")
BUDGET = Kind('a share such as "50%" (1 to 100) or a size such as "64GiB"', _budget, metavar="SIZE")
CAP = Kind(
    'a share of the measured rate such as "25%", or a size for each second such as "200MB"',
    _budget,
    metavar="RATE",
)
NAMES = Kind("a list of names in quotes", _texts, _comma, metavar="NAME", repeated=True)
COMMAND = Kind(
    'a program and its arguments (in the file: ["program", "argument"])', _texts, shlex.split
)
STORE_URLS = Kind(
    'a list of store URLs such as "file:///mnt/checkpoints"',
    _store_urls,
    _comma,
    metavar="URL",
    shown=False,
    repeated=True,
)
MEETING_PLACES = Kind(
    'a list of rendezvous stores such as "tcpstore://10.0.0.7:29400/evac/my-run"',
    _meeting_places,
    _comma,
    metavar="URL",
    repeated=True,
)
ETCD_URLS = Kind(
    'a list of URLs without a path, such as "https://etcd.example:2379"',
    _etcd_urls,
    _comma,
    metavar="URL",
    shown=False,
    repeated=True,
)
ADDRESS = Kind('an IP address in quotes, such as "127.0.0.1"', _address, metavar="ADDRESS")
SOME_LISTEN = Kind(
    'an IP address and a port in quotes, such as "0.0.0.0:9912" or "[::]:9912", or "" for none',
    _some_listen,
    metavar="ADDRESS:PORT",
)
SOME_METADATA_ROOT = Kind(
    'a URL of an address without a path, such as "http://169.254.169.254", or "" for its own',
    _some_metadata_root,
    metavar="URL",
    shown=False,
)
SOME_HTTP_URL = Kind(
    'a URL such as "https://scheduler.example/left", or "" for none',
    _some_http_url,
    metavar="URL",
    shown=False,
)
SOME_NOTICE_URL = Kind(
    'a URL without credentials, such as "https://scheduler.example/notices", or "" for none',
    _some_notice_url,
    metavar="URL",
    shown=False,
)
