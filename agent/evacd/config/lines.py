"""On which line of a TOML file each key stands; `tomllib` does not say.

A statement ends at the first line where tomllib accepts what was read since the last one, so
multi-line strings, arrays, dotted and quoted keys need no rules here.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str, ...]
_AT_LINE = re.compile(r"\(at line ([0-9]+), column [0-9]+\)")


def lines(text: str) -> Mapping[Path, int]:
    """The first line, counted from 1, of every table and key of *text*, which is valid TOML.

    Of a table that begins with ``[[name]]`` also by its number, counted from 0:
    ``("name", "0", "key")``.
    """
    found: dict[Path, int] = {}
    entries: Counter[Path] = Counter()
    entry: Path = ()
    table: Path = ()
    pending = ""
    start = 1
    # Split as TOML does: at \n only, so that the numbers agree with any editor.
    for number, line in enumerate(text.split("\n"), start=1):
        pending += line + "\n"
        try:
            statement = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        if pending.lstrip().startswith("["):
            table, entry = max(_paths(statement), key=len), ()
            below: Path = ()
            if pending.lstrip().startswith("[["):
                entry = (*table, str(entries[table]))
                entries[table] += 1
                found[entry] = start
        else:
            below = table
        for path in _paths(statement):
            found.setdefault(below + path, start)
            if entry and below:
                found.setdefault(entry + path, start)
        pending, start = "", number + 1
    return found


def syntax_line(error: Exception, text: str) -> int:
    """The line that *error* speaks of; the last one where the text ended too early."""
    found = _AT_LINE.search(str(error))
    return int(found[1]) if found else len(text.rstrip("\n").split("\n"))


def _paths(table: Mapping[str, Any], above: Path = ()) -> Iterator[Path]:
    for key, value in table.items():
        path = (*above, key)
        yield path
        # `[[name]]` is a list of one table.
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict):
            yield from _paths(inner, path)
