"""Where the nodes of a job meet: a store of each kind, for one test alone."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evac.rendezvous.address import ETCD as ETCD_SCHEME
from evac.rendezvous.address import TCPSTORE as TCPSTORE_SCHEME
from evac.rendezvous.address import Address, prefix_of
from evac.rendezvous.torch_keys import connect
from tests.handlers.rendezvous.agents import Job
from tests.handlers.rendezvous.cells import ETCD, HOSTED
from tests.services.etcd import etcd_process
from tests.services.process import HOST, PATIENCE_SECONDS, free_port


@dataclass(frozen=True)
class Meeting:
    """One place.

    Attributes:
        kind: See `cells.KINDS`.
        port: 0 where the first node of each job serves its own.
        process: The store's; None where it is a node's agent.
    """

    kind: str
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def hosted(self) -> bool:
        """Whether the first node of a job is to serve the store."""
        return self.kind == HOSTED

    def job(self, folder: Path, **options: Any) -> Job:
        """One that meets here; its first node is to be started as the host, where it is `hosted`."""
        scheme = ETCD_SCHEME if self.kind == ETCD else TCPSTORE_SCHEME
        return Job(folder, port=self.port or free_port(), scheme=scheme, **options)

    def address(self, job: Job) -> Address:
        """Where the log of a job begins."""
        scheme = ETCD_SCHEME if self.kind == ETCD else TCPSTORE_SCHEME
        return Address(scheme, HOST, job.port, prefix_of(job.run))

    def count_keys(self) -> int:
        """All that lies in the store; 0 where it ends with its job."""
        if self.hosted:
            return 0
        if self.kind == ETCD:
            body = json.dumps({"key": "AA==", "range_end": "AA==", "count_only": True}).encode()
            request = urllib.request.Request(f"http://{HOST}:{self.port}/v3/kv/range", data=body)
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(json.load(answer).get("count", 0))
        return int(connect(HOST, self.port, seconds=10).num_keys())


@contextmanager
def meeting(kind: str, folder: Path) -> Iterator[Meeting]:
    """A place of that kind.

    Raises:
        Unavailable: There is no such store here.
    """
    if kind == HOSTED:
        yield Meeting(kind)
    elif kind == ETCD:
        with etcd_process(folder / "etcd") as (port, server):
            yield Meeting(kind, port, server)
    else:
        with evac_store(folder) as (port, server):
            yield Meeting(kind, port, server)


@contextmanager
def evac_store(
    folder: Path, enter: Sequence[str] = ()
) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """`evac store`: its port and its process, which ends well when it is told to."""
    command = [*enter, sys.executable, "-m", "evac", "store", "--port", "0"]
    with (
        (folder / "store.log").open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            assert line.startswith("serving on port ")
            yield int(line.split()[-1]), process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_SECONDS) in (0, -signal.SIGKILL)
        finally:
            process.kill()
