"""CRC-32C per 4 MiB: computed in the background after staging, checked by every reader.

crc32c and not another: S3 and GCS take it as their own checksum, the `crc32c` package reads a
memoryview in place at memory speed and releases the GIL while it does.
"""

from evac.errors import EvacError
from evac.manifest import CHUNK


def chunk_sums(data: memoryview) -> tuple[int, ...]:
    """The CRC-32C of each 4 MiB of *data*, in order; the last chunk may be short.

    Blocks for about a second per 4 GB.

    Raises:
        EvacError: The `crc32c` package is not installed.
    """
    try:
        from crc32c import crc32c
    except ImportError as error:
        raise EvacError(
            "checksums need the crc32c package: pip install 'evac[torch]' (on a node: 'evac[agent]')"
        ) from error
    sums: list[int] = []
    with data.cast("B") as view:
        for start in range(0, view.nbytes, CHUNK):
            # Released at once: an exported slice would keep the owner from unmapping.
            with view[start : start + CHUNK] as chunk:
                sums.append(crc32c(chunk))
    return tuple(sums)
