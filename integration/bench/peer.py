"""Shared memory to a peer's memory, against raw sockets to a sink that throws all away.

--size counts the bytes of one body. The receiver is a process of its own, beside an event loop whose
lateness is taken while the body comes. Two bodies fit, so that each round finds the memory of the one before.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from harness import Ratio, Variant, main
from sink import HOST, MIB, raw, sink, staged, timed

from evac.store import open_store

RATIOS = [
    Ratio("of_ceiling", "gb_per_s", "evac", "raw sockets", 0.5),
    Ratio("loop_lateness", "receiver_loop_p99_ms", "evac", None, 20.0, at_least=False),
]


def build(size: int, opened: ExitStack) -> Sequence[Variant]:
    """Both send the same bytes, over two connections."""
    folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    secret = folder / "token"
    secret.write_text(token := os.urandom(16).hex())
    data = staged(size)
    discarding = opened.enter_context(sink())
    port, ask, tell = opened.enter_context(_peer(2 * size, token))
    loop = opened.enter_context(asyncio.Runner())
    store = open_store(f"evac://{HOST}:{port}?token_file={secret}&connections=2")

    def lateness() -> float:
        ask.write("\n")
        ask.flush()
        return float(tell.readline())

    def evac() -> Mapping[str, float]:
        lateness()
        figures = timed(lambda: loop.run(store.put("job/body", data)), size)()
        return {**figures, "receiver_loop_p99_ms": lateness()}

    return [
        Variant("evac", evac),
        Variant("raw sockets", timed(lambda: raw(data, discarding), size)),
    ]


@contextmanager
def _peer(budget: int, token: str) -> Iterator[tuple[int, IO[str], IO[str]]]:
    """Its port, and the two ends by which its loop's lateness is asked for."""
    script = Path(__file__).with_name("sink") / "peer.py"
    command = [sys.executable, str(script), str(budget), token]
    paths = os.pathsep.join([str(script.parents[1]), *filter(None, sys.path)])
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline()), server.stdin, server.stdout
        finally:
            server.kill()


if __name__ == "__main__":
    with ExitStack() as stack:
        sys.exit(
            main(
                "peer", lambda size: build(size, stack), RATIOS, size=1024 * MIB, rounds=7, warmup=2
            )
        )
