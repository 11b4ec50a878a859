"""How late the daemon's event loop answers while it flushes at full speed.

A real evacd and one job of --size bytes, or 8, 64 and 512 jobs that share them, which a drill moves to a local store
(in EVAC_BENCH_DIR, default /var/tmp) or to the byte sink that speaks S3. Meanwhile somebody says hello again and
again, which is all loop and no disk, and costs the same however many are on board; what the welcome takes beyond the
usual one of a calm daemon is lateness. One drill is soon over: what is staged anew is drilled again, until there are
answers enough.
"""

import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from harness import Ratio, Variant, main
from many import Job, Node
from sink import HOST, sink

from evac.wire import MAX_PACKET, PROTOCOL, Hello, encode

COUNTS = (1, 8, 64, 512)
PAUSE = 0.005
# Answers of a calm daemon, and during flushes: so many at least, unless this many drills gave fewer.
CALM = 200
ANSWERS = 400
DRILLS = 20
# Of one drill, in seconds: whatever is slower than that is broken.
LIMIT = 60.0


def asked(node: Node) -> float:
    """Milliseconds that one welcome takes."""
    began = time.perf_counter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(LIMIT)
        line.connect(str(node.socket))
        line.send(encode(Hello(version=PROTOCOL, client="bench"), id=1))
        line.recv(MAX_PACKET)
    took = (time.perf_counter() - began) * 1000
    time.sleep(PAUSE)
    return took


def drilled(node: Node) -> list[float]:
    """What welcomes take while a drill flushes all that is staged."""

    def ended() -> int:
        return node.log.read_bytes().count(b"drill.finished")

    took, before, ends = list[float](), ended(), time.perf_counter() + LIMIT
    node.begin_drill()
    # The log and not the status: with hundreds on board that is some milliseconds of the loop's own time.
    while ended() == before:
        took.append(asked(node))
        if time.perf_counter() > ends:
            raise RuntimeError(f"a drill that does not end within {LIMIT:.0f} s")
    status = node.status()
    report = status["drill"] if status else {"lost": ["all"], "reason": "no answer"}
    if report["lost"] or report["reason"]:
        raise RuntimeError(f"{len(report['lost'])} were lost in a drill: {report['reason']}")
    return took


def flushing(to_s3: bool, count: int, size: int) -> Mapping[str, float]:
    """Answers while flushes run, beside those of a calm daemon."""
    where = os.environ.get("EVAC_BENCH_DIR", "/var/tmp")
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(dir=where)))
        store = ""
        if to_s3:
            os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}
            store = f"s3://bench/prefix?endpoint=http://{HOST}:{ends.enter_context(sink())}"
        node = Node(folder, ends, store)
        jobs = [Job(f"job{number}", size // count, node.socket) for number in range(count)]
        for job in jobs:
            ends.callback(job.close)
        calm, busy = list[float](), list[float]()
        for step in range(1, DRILLS + 1):
            for job in jobs:
                job.stage(step)
            node.until(lambda step=step: node.staged(step) == count)  # type: ignore[misc] # mypy infers no default
            if not calm:
                calm = [asked(node) for _ in range(CALM)]
            busy += drilled(node)
            if len(busy) >= ANSWERS:
                break
        usual = median(calm)
        late, idle = ([max(0.0, one - usual) for one in some] for some in (busy, calm))
        cuts = quantiles(late, n=100)
        return {
            "loop_p50_ms": cuts[49],
            "loop_p99_ms": cuts[98],
            # What the machine's other work makes late when nothing is flushed.
            "calm_p99_ms": quantiles(idle, n=100)[98],
            "usual_ms": usual,
            "answers": float(len(late)),
        }


def variants(size: int) -> list[Variant]:
    """One for each number of jobs and kind of store."""
    local = [Variant(f"local, {n}", partial(flushing, False, n, size)) for n in COUNTS]
    return [*local, Variant("s3, 1", partial(flushing, True, 1, size))]


if __name__ == "__main__":
    names = [*(f"local, {count}" for count in COUNTS), "s3, 1"]
    sys.exit(
        main(
            "late",
            variants,
            [Ratio(one, "loop_p99_ms", one, None, 20.0, at_least=False) for one in names],
            size=1024 * 2**20,
            rounds=3,
        )
    )
