"""How late the daemon's event loop answers while it flushes at full speed.

A real evacd and one job of --size bytes, which `evac drill --flush` moves to a local store (in
EVAC_BENCH_DIR, default /var/tmp) or to the byte sink that speaks S3. Meanwhile somebody asks for its status,
which is all loop and no disk; what such an answer takes beyond the usual one of a calm daemon is lateness.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

from harness import Ratio, Variant, main
from many import Job, Node
from sink import HOST, sink

PAUSE = 0.005
CALM = 100


def asked(node: Node) -> float:
    """Milliseconds that one answer takes."""
    began = time.perf_counter()
    node.status()
    took = (time.perf_counter() - began) * 1000
    time.sleep(PAUSE)
    return took


def flushing(to_s3: bool, size: int) -> Mapping[str, float]:
    """Answers while a flush runs, beside those of a calm daemon."""
    where = os.environ.get("EVAC_BENCH_DIR", "/var/tmp")
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(dir=where)))
        store = ""
        if to_s3:
            os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}
            store = f"s3://bench/prefix?endpoint=http://{HOST}:{ends.enter_context(sink())}"
        node = Node(folder, ends, store)
        job = Job("job", size, node.socket)
        ends.callback(job.close)
        job.stage()
        node.until(lambda: node.staged() == 1)
        calm = [asked(node) for _ in range(CALM)]
        usual = median(calm)
        flush = threading.Thread(target=node.drill, args=("--flush",))
        flush.start()
        late = []
        while flush.is_alive():
            late.append(max(0.0, asked(node) - usual))
        flush.join()
        cuts = quantiles(late, n=100)
        return {
            "loop_p50_ms": cuts[49],
            "loop_p99_ms": cuts[98],
            # What the machine's other work makes late when nothing is flushed.
            "calm_p99_ms": quantiles([max(0.0, one - usual) for one in calm], n=100)[98],
            "answers": float(len(late)),
        }


def variants(size: int) -> list[Variant]:
    """One for each kind of store."""
    return [
        Variant("flush_local", lambda: flushing(False, size)),
        Variant("flush_s3", lambda: flushing(True, size)),
    ]


if __name__ == "__main__":
    sys.exit(
        main(
            "late",
            variants,
            [
                Ratio("local", "loop_p99_ms", "flush_local", None, 20.0, at_least=False),
                Ratio("s3", "loop_p99_ms", "flush_s3", None, 20.0, at_least=False),
            ],
            size=1024 * 2**20,
            rounds=3,
        )
    )
