"""A real etcd, one node, on loopback."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.process import HOST, Unavailable, answers, free_port, process


@contextmanager
def etcd(folder: Path) -> Iterator[int]:
    """Its client port.

    Raises:
        Unavailable: It is not installed here.
    """
    program = shutil.which("etcd")
    if program is None:
        raise Unavailable("etcd is not installed: apt-get install etcd-server")
    port, peers = free_port(), free_port()
    client, peer = f"http://{HOST}:{port}", f"http://{HOST}:{peers}"
    command = [
        program,
        "--data-dir", str(folder / "data"),
        "--listen-client-urls", client,
        "--advertise-client-urls", client,
        "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"default={peer}",
        "--unsafe-no-fsync",
    ]  # fmt: skip
    with process(command, folder=folder, ready=answers(port)):
        yield port
