"""Shared memory to Azure Blob Storage, against raw sockets to the same sink.

--size counts the bytes of one body.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from harness import Ratio, Variant, main
from sink import HOST, MIB, raw, sink, staged, timed

from evac.store import open_store

RATIOS = [
    Ratio("of_ceiling", "gb_per_s", "evac", "raw sockets", 0.9),
    Ratio("cpu", "cpu_s_per_gb", "evac", None, 0.5, at_least=False),
]


def build(size: int, opened: ExitStack) -> Sequence[Variant]:
    """Both send the same bytes."""
    os.environ |= {"AZURE_STORAGE_ACCOUNT_NAME": "bench", "AZURE_STORAGE_ACCOUNT_KEY": "YQ=="}
    data = staged(size)
    port = opened.enter_context(sink())
    loop = opened.enter_context(asyncio.Runner())
    store = open_store(f"az://bench/prefix?endpoint=http://{HOST}:{port}/bench")
    return [
        Variant("evac", timed(lambda: loop.run(store.put("body", data)), size)),
        Variant("raw sockets", timed(lambda: raw(data, port), size)),
    ]


if __name__ == "__main__":
    with ExitStack() as stack:
        sys.exit(
            main(
                "flush_azure",
                lambda size: build(size, stack),
                RATIOS,
                size=1024 * MIB,
                rounds=7,
                warmup=1,
            )
        )
