"""What stands in the place of an object that has outgrown it: a pointer to where its bytes are.

A generation's files are laid out once, and `.metadata` gives each object a place of fixed length. At
the end of a file is room for what no longer fits (`evac.torch.sides`), and the place then says
which bytes of the same file are meant.

Whoever knows of no pointers must not take one for the object. So it begins with a pickle of which
loading fails, with a text that says what to do: `torch.load`, and so stock `dcp.load` of that object,
raises. `evac.torch` reads the numbers behind it and loads nothing. Turned down: a class of ours in
the object's place, which stock `dcp.load` would hand out without a word.
"""

import struct
from typing import NoReturn

from evac.errors import GenerationError

# Calls `refuse`, by a name that is kept: it lies in checkpoints.
_REFUSES = b"\x80\x02cevac.side\nrefuse\n)R."
_WHERE = struct.Struct("<QQ")
POINTER_BYTES = len(_REFUSES) + _WHERE.size


def pointer(offset: int, nbytes: int) -> bytes:
    """What to write at the beginning of the place.

    Args:
        offset: Of the object's bytes in its file.
    """
    return _REFUSES + _WHERE.pack(offset, nbytes)


def pointed(place: bytes | memoryview) -> tuple[int, int] | None:
    """Where the bytes are, offset in the same file and length; None where *place* holds the object.

    Args:
        place: At least its first `POINTER_BYTES` bytes.
    """
    if place[: len(_REFUSES)] != _REFUSES or len(place) < POINTER_BYTES:
        return None
    offset, nbytes = _WHERE.unpack_from(place, len(_REFUSES))
    return int(offset), int(nbytes)


def refuse() -> NoReturn:
    """What loading a pointer comes to.

    Raises:
        GenerationError: Always.
    """
    reason = (
        "it had outgrown its place when this was saved, and its bytes lie at the end of the file: "
        "load it with evac.torch (EvacReader), or the copy that `evac export` writes"
    )
    raise GenerationError("an object of this checkpoint", reason)
