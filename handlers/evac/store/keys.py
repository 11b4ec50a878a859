"""What a key is: a relative path of plain names joined by "/"."""

from evac.errors import StoreRejected


def split(key: str) -> tuple[str, ...]:
    """The components of a key.

    Raises:
        StoreRejected: The key is not plain names joined by "/".
    """
    parts = tuple(key.split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\0" in part:
            raise StoreRejected(key, "not a relative path of plain names")
    return parts
