"""How a setting is declared: a dataclass field with the table's columns as its metadata."""

from dataclasses import field
from typing import Any

from evacd.config.kinds import Kind


def setting(kind: Kind, default: Any, help: str, *, flag: str = "") -> Any:
    """Declare a field.

    Args:
        help: One line that gives the unit.
        flag: Where it is not ``--<section>-<field>``. The variable is named after the flag.
    """
    return field(default=default, metadata={"kind": kind, "help": help, "flag": flag})
