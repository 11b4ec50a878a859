"""Which file holds the journal, where nobody says, and how to ask for it. Pure."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "incidents.sqlite"
DEFAULT = Path("/var/lib/evac") / NAME


def place(environ: Mapping[str, str], status: Mapping[str, Any] | None) -> Path:
    """The journal of this node's daemon; whether it is there is another question.

    Args:
        environ: `EVAC_JOURNAL` names the file, `EVAC_STATE_DIR` its folder, as for evacd.
        status: What a living daemon says of itself; None without one.
    """
    if file := environ.get("EVAC_JOURNAL"):
        return Path(file)
    if folder := environ.get("EVAC_STATE_DIR"):
        return Path(folder) / NAME
    said = status.get("journal") if status else None
    return Path(said) if isinstance(said, str) and said else DEFAULT


def report_command(status: Mapping[str, Any]) -> str:
    """What shows the timeline, also when the daemon that said *status* is gone."""
    said = status.get("journal")
    if not isinstance(said, str) or Path(said) == DEFAULT:
        return "evac report"
    return f"evac report --journal {shlex.quote(said)}"
