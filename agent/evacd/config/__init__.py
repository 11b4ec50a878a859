"""Configuration: one TOML file, `EVAC_*` variables and flags, in rising precedence.

What is unknown or wrong is refused with its place, its key and what was expected. An unknown
`EVAC_*` variable is no error, workloads have their own; `unread` finds those that look meant.
"""

import difflib
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from evac.errors import ConfigError
from evacd.config.entries import NodeRule, WrongEntry
from evacd.config.etcd import EtcdConfig
from evacd.config.kinds import MODE, Budget
from evacd.config.lines import lines, syntax_line
from evacd.config.peers import PeerConfig
from evacd.config.settings import (
    Config,
    CordonConfig,
    DepartureConfig,
    HttpConfig,
    LogConfig,
    MemoryConfig,
    PlanConfig,
    PolicyConfig,
    QuietConfig,
    SocketConfig,
    StateConfig,
    StoreConfig,
)
from evacd.config.sources import (
    AwsConfig,
    AzureConfig,
    GcpConfig,
    NodeConfig,
    NoticeConfig,
    ShutdownConfig,
    UserConfig,
)
from evacd.config.table import SECTIONS, SETTINGS, Setting
from evacd.config.users import UserPolicy, shared
from evacd.config.variables import Unread, unread

__all__ = [
    "SETTINGS",
    "AwsConfig",
    "AzureConfig",
    "Budget",
    "Config",
    "CordonConfig",
    "DepartureConfig",
    "EtcdConfig",
    "GcpConfig",
    "HttpConfig",
    "LogConfig",
    "MemoryConfig",
    "NodeConfig",
    "NodeRule",
    "NoticeConfig",
    "PeerConfig",
    "PlanConfig",
    "PolicyConfig",
    "QuietConfig",
    "Row",
    "Setting",
    "ShutdownConfig",
    "SocketConfig",
    "StateConfig",
    "StoreConfig",
    "Unread",
    "UserConfig",
    "UserPolicy",
    "explain",
    "load",
    "unread",
    "without_secrets",
]

# What a store's URL may say in its query, and none of it secret; two targets may differ in nothing else.
_STORES = ("s3", "gs", "az", "evac")
_OPTIONS = ("account", "connections", "endpoint", "region", "timeout", "token_file")
_PLAIN = re.compile(r"[A-Za-z0-9:/._\[\]-]{0,200}")

_BY_KEY = {one.key: one for one in SETTINGS}


def load(path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """Read all settings.

    Args:
        path: The TOML file; None for none.
        environ: The environment. An empty variable counts as not set.
        flags: By dotted key (``store.targets``): text, or a value as TOML would hold it; None
            where the flag was not given.

    Raises:
        ConfigError: The first thing that is unknown or wrong.
    """
    given: dict[str, tuple[str, Any]] = {}
    if path is not None:
        given |= _from_file(path)
    for one in SETTINGS:
        if text := environ.get(one.env):
            given[one.key] = one.env, _value(one, one.env, text)
    for key, raw in flags.items():
        if key not in _BY_KEY:
            raise ConfigError(key, key, _one_of(_BY_KEY, key, "a setting"))
        if raw is not None:
            one = _BY_KEY[key]
            given[key] = one.flag, _value(one, one.flag, raw)
    sections = {
        section: kind(**{k.partition(".")[2]: v for k, (_, v) in given.items() if _in(k, section)})
        for section, kind in SECTIONS.items()
    }
    policy = sections["policy"]
    if (both := shared(policy.users, policy.namespaces)) is not None:
        name, prefix, user = both
        where = given.get("policy.namespaces", ("policy.namespaces", None))[0]
        wrong = f"a prefix for namespace {name} that is no user's: {prefix} is {user}'s"
        raise ConfigError(where, "policy.namespaces", wrong)
    return Config(**sections, origins={key: where for key, (where, _) in given.items()})


@dataclass(frozen=True)
class Row:
    """One setting as it is in force: *value* is for people, *origin* a place or ``default``."""

    key: str
    value: str
    origin: str


def explain(config: Config) -> list[Row]:
    """Every setting, its value without secrets, and where it came from."""
    return [
        Row(
            one.key,
            _shown(one, getattr(getattr(config, one.section), one.name)),
            config.origins.get(one.key, "default"),
        )
        for one in SETTINGS
    ]


def without_secrets(url: str) -> str:
    """*url* less what may be a secret: user, password, fragment, and in a query all but a store's known options."""
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return "(not a URL)"
    host = parts.netloc.rpartition("@")[2]
    plain = [
        f"{name}={value}"
        for name, value in given
        if parts.scheme in _STORES and name in _OPTIONS and _PLAIN.fullmatch(value)
    ]
    if parts.fragment or len(plain) < len(given) or (parts.query and not given):
        plain.append("...")
    shown = f"?{'&'.join(plain)}" if plain else ""
    return urlunsplit((parts.scheme, host, parts.path, "", "")) + shown


def _from_file(path: Path) -> Iterator[tuple[str, tuple[str, Any]]]:
    try:
        text = path.read_bytes().decode()
        document = tomllib.loads(text)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(str(path), "file", f"a readable file ({reason})") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}", "file", "UTF-8 text") from error
    except (ValueError, RecursionError) as error:  # also: a number of 5000 digits, 1000 brackets
        where = f"{path}:{syntax_line(error, text)}"
        raise ConfigError(where, "syntax", f"TOML ({error})") from error
    numbers = lines(text)
    for section, table in document.items():
        where = f"{path}:{numbers[section,]}"
        if section not in SECTIONS:
            raise ConfigError(where, section, _one_of(SECTIONS, section, "a section"))
        if not isinstance(table, dict):
            raise ConfigError(where, section, f"a table: [{section}]")
        names = [one.name for one in SETTINGS if one.section == section]
        for name, raw in table.items():
            key, where = f"{section}.{name}", f"{path}:{numbers[section, name]}"
            if name not in names:
                raise ConfigError(where, key, _one_of(names, name, f"a key of [{section}]"))
            try:
                value = _value(_BY_KEY[key], where, raw, text=False)
            except ConfigError as error:
                below = getattr(error.__cause__, "path", ())
                number = numbers.get((section, name, *below), numbers[section, name])
                raise ConfigError(f"{path}:{number}", key, error.expected) from error
            yield key, (where, value)


def _value(one: Setting, where: str, raw: object, *, text: bool = True) -> Any:
    try:
        return one.kind.check(one.kind.parse(raw) if text and isinstance(raw, str) else raw)
    except WrongEntry as error:
        raise ConfigError(where, one.key, f"{one.kind.expected}; {error.expected}") from error
    except (ValueError, OverflowError, RecursionError) as error:
        got = f", not {str(raw)[:80]!r}" if one.kind.shown else ""
        raise ConfigError(where, one.key, one.kind.expected + got) from error


def _one_of(names: Iterable[str], wrong: str, what: str) -> str:
    known = list(names)
    near = difflib.get_close_matches(wrong, known, n=1)
    return f'{what}; did you mean "{near[0]}"?' if near else f"{what}: {', '.join(known)}"


def _in(key: str, section: str) -> bool:
    return key.partition(".")[0] == section


def _shown(one: Setting, value: object) -> str:
    if one.kind.show is not None:
        return one.kind.show(value)
    if isinstance(value, tuple):
        return shlex.join(_shown(one, item) for item in value)
    if one.kind is MODE and isinstance(value, int):
        return f"0{value:o}"
    if isinstance(value, str) and "://" in value:
        return without_secrets(value)
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else str(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
