"""What an install wrote, kept for the next one and for the way back."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evacd.errors import StateError

PATH = "/var/lib/evac/installed.json"
_VERSION = 1


@dataclass(frozen=True)
class Record:
    """One machine's.

    Attributes:
        files: SHA-256 in hex of each file as it was written, by path.
        folders: Those that were not there before, outer ones first.
        enabled: The unit was enabled by us; whoever disables it later has decided it.
    """

    files: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    enabled: bool = False


def read(file: Path) -> Record:
    """The record in *file*; an empty one where there is none.

    Raises:
        StateError: It cannot be read, or is not ours.
    """
    try:
        text = file.read_text()
    except FileNotFoundError:
        return Record()
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(str(file), str(error)) from error
    try:
        return _parse(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise StateError(str(file), f"is not a record of evacd install: {error}") from error


def text_of(record: Record) -> str:
    """What `read` understands."""
    document = {
        "version": _VERSION,
        "files": record.files,
        "folders": list(record.folders),
        "enabled": record.enabled,
    }
    return json.dumps(document, indent=2) + "\n"


def _parse(document: Any) -> Record:
    match document:
        case {"version": 1, "files": dict(files), "folders": list(folders), "enabled": bool(on)}:
            if all(type(one) is str for one in (*files, *files.values(), *folders)):
                return Record(files, tuple(folders), on)
    raise ValueError("unknown form")
