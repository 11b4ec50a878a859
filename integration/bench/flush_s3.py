"""Shared memory to S3, against raw sockets to the same sink and boto3 as it comes; also over TLS.

--size counts the bytes of one body. The event loop's lateness is taken while the body moves.
"""

import asyncio
import io
import os
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from harness import Ratio, Variant, main
from sink import HOST, MIB, raw, sink, staged, timed

from evac.store import Store, open_store

RATIOS = [
    Ratio("of_ceiling", "gb_per_s", "evac", "raw sockets", 0.9),
    Ratio("cpu", "cpu_s_per_gb", "evac", None, 0.5, at_least=False),
    Ratio("vs_boto3", "gb_per_s", "evac", "boto3 defaults", 4.0),
    Ratio("loop_lateness", "loop_p99_ms", "evac", None, 20.0, at_least=False),
    Ratio("of_tls_ceiling", "gb_per_s", "evac, TLS", "raw sockets, TLS", 0.5),
]
TICK = 0.005


def build(size: int, opened: ExitStack) -> Sequence[Variant]:
    """All send the same bytes."""
    import boto3  # type: ignore[import-untyped] # has no stubs of its own

    folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    authority, certificate = _certificates(folder)
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "us-east-1",
        "AWS_CA_BUNDLE": str(authority),
    }
    data = staged(size)
    port = opened.enter_context(sink())
    secure = opened.enter_context(sink(certificate))
    trust = ssl.create_default_context(cafile=str(authority))
    loop = opened.enter_context(asyncio.Runner())
    plain = open_store(f"s3://bench/prefix?endpoint=http://{HOST}:{port}")
    encrypted = open_store(f"s3://bench/prefix?endpoint=https://{HOST}:{secure}")
    client = boto3.client("s3", endpoint_url=f"http://{HOST}:{port}")

    def evac(store: Store) -> Mapping[str, float]:
        late: list[float] = []
        figures = timed(lambda: loop.run(_put(store, data, late)), size)()
        late.sort()
        return {**figures, "loop_p99_ms": late[int(len(late) * 0.99)] * 1000 if late else 0.0}

    def boto() -> None:
        client.upload_fileobj(_Reader(data), "bench", "prefix/body")

    return [
        Variant("evac", lambda: evac(plain)),
        Variant("raw sockets", timed(lambda: raw(data, port), size)),
        Variant("boto3 defaults", timed(boto, size)),
        Variant("evac, TLS", lambda: evac(encrypted)),
        Variant("raw sockets, TLS", timed(lambda: raw(data, secure, trust), size)),
    ]


async def _put(store: Store, data: memoryview, late: list[float]) -> None:
    """Put *data*; *late* gets how much later than asked for the loop came by, in seconds."""
    async with asyncio.TaskGroup() as tasks:

        async def tick() -> None:
            while True:
                due = time.perf_counter() + TICK
                await asyncio.sleep(TICK)
                late.append(time.perf_counter() - due)

        ticking = tasks.create_task(tick())
        await store.put("body", data)
        ticking.cancel()


class _Reader(io.RawIOBase):
    """Memory as the file that boto3 wants."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._lock = threading.Lock()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._data.nbytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._data.nbytes if size < 0 else min(self._data.nbytes, self._at + size)
        found = bytes(self._data[self._at : end])
        self._at = end
        return found


def _certificates(folder: Path) -> tuple[Path, Path]:
    """A made-up authority's certificate, and one of its own for the sink, with its key."""
    import trustme

    authority = trustme.CA()
    one = authority.issue_cert(HOST)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    one.private_key_and_cert_chain_pem.write_to_path(folder / "sink.pem")
    return folder / "ca.pem", folder / "sink.pem"


if __name__ == "__main__":
    with ExitStack() as stack:
        sys.exit(
            main(
                "flush_s3",
                lambda size: build(size, stack),
                RATIOS,
                size=1024 * MIB,
                rounds=7,
                warmup=1,
            )
        )
