"""evac.toml with every setting, written off the table of settings, so that it cannot be out of date.

All but a few lines are comments. ``# `` begins an explanation and ``#`` alone a setting: what
stands behind it is its default, and removing the ``#`` changes nothing.

`make sample` brings the copy for readers, systemd/evac.toml, up to date.
"""

import json
import tomllib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from textwrap import wrap
from typing import Any

from evacd.config import SETTINGS, Budget, Setting
from evacd.config.table import SECTIONS

_WIDTH = 96

_HEAD = """\
Settings of evacd. A store is all that it needs: without one it does not start.

A variable or a flag, named beside each setting, has precedence over this file. What stands
behind a # is the default. What is unknown or wrong is refused with its line: try a change out
with `evacd check`, then `systemctl restart evacd`."""

# What no default can tell: the line to begin with, or one that the other installed files need.
_INSTEAD = {
    "store.targets": '#targets = ["file:///mnt/checkpoints"]',
    "sockets.admin_group": 'admin_group = "evac"',
}


def sample() -> str:
    """The text of the file."""
    lines = _comment(_HEAD)
    for section, kind in SECTIONS.items():
        about = (kind.__doc__ or "").split("\n")[0]
        lines += ["", "", *_comment(about), f"[{section}]"]
        for one in SETTINGS:
            if one.section == section:
                lines += ["", *_comment(_about(one)), _INSTEAD.get(one.key) or _line(one)]
    return "\n".join(lines) + "\n"


def _about(one: Setting) -> str:
    help = one.help[0].upper() + one.help[1:]
    return f"{help}.\n{one.env}, {one.flag}: {one.kind.expected}."


def _comment(text: str) -> list[str]:
    return [
        f"# {line}".rstrip()
        for paragraph in text.split("\n")
        for line in wrap(paragraph, _WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
    ]


def _line(one: Setting) -> str:
    """The setting with its default, in the form that its own parser takes for it.

    Raises:
        TypeError: It is of a kind that no setting had so far.
    """
    for text in _forms(one.default):
        try:
            if one.kind.check(tomllib.loads(f"it = {text}")["it"]) == one.default:
                return f"#{one.name} = {text}"
        except ValueError:
            continue
    raise TypeError(f"{one.key}: its default {one.default!r} cannot be written as TOML yet")


def _forms(value: Any) -> Iterator[str]:
    match value:
        case bool() | int() | float():
            yield json.dumps(value)
            yield f'"0{value:o}"' if type(value) is int else '""'
        case tuple() | list():
            yield json.dumps([str(one) for one in value], ensure_ascii=False)
        case str() | Path() | Budget() | datetime():
            yield json.dumps(str(value), ensure_ascii=False)
    # What stands for nothing.
    yield from ('""', "[]", "{}")
