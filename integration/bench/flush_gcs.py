"""Shared memory to Google Cloud Storage, against raw sockets to the same sink and Google's own client.

--size counts the bytes of one body, at most 1 GiB: the sink composes once. evac also sums every byte,
since this store tells what it has summed; the raw sender does not, and on few cores that shows.
"""

import asyncio
import io
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from harness import Ratio, Variant, main
from sink import HOST, MIB, raw, sink, staged, timed

from evac.store import open_store

RATIOS = [
    Ratio("of_ceiling", "gb_per_s", "evac", "raw sockets", 0.4),
    Ratio("vs_google", "gb_per_s", "evac", "google-cloud-storage", 1.5),
    Ratio("cpu_vs_google", "cpu_s_per_gb", "evac", "google-cloud-storage", 1.0, at_least=False),
]


def build(size: int, opened: ExitStack) -> Sequence[Variant]:
    """All send the same bytes; only evac sums them, too."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage  # type: ignore[import-untyped] # has no stubs

    data = staged(size)
    port = opened.enter_context(sink())
    loop = opened.enter_context(asyncio.Runner())
    store = open_store(f"gs://bench/prefix?endpoint=http://{HOST}:{port}")
    client = storage.Client(
        project="bench",
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call] # untyped there
        client_options={"api_endpoint": f"http://{HOST}:{port}"},
    )
    bucket = client.bucket("bench")

    def google() -> None:
        # The sink keeps no bytes and so has no checksum to give: theirs is left out.
        blob = bucket.blob("prefix/body", chunk_size=64 * MIB)
        blob.upload_from_file(io.BytesIO(data), size=size, checksum=None)

    return [
        Variant("evac", timed(lambda: loop.run(store.put("body", data)), size)),
        Variant("raw sockets", timed(lambda: raw(data, port), size)),
        Variant("google-cloud-storage", timed(google, size)),
    ]


if __name__ == "__main__":
    with ExitStack() as stack:
        sys.exit(
            main(
                "flush_gcs",
                lambda size: build(size, stack),
                RATIOS,
                size=512 * MIB,
                rounds=7,
                warmup=1,
            )
        )
