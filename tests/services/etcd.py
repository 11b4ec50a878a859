"""A real etcd, one node, on loopback."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.services.process import HOST, Unavailable, answers, free_port, process


@contextmanager
def etcd(folder: Path) -> Iterator[int]:
    """Its client port.

    Raises:
        Unavailable: It is not installed here.
    """
    with etcd_process(folder) as (port, _):
        yield port


@contextmanager
def etcd_process(
    folder: Path,
    enter: Sequence[str] = (),
    host: str = HOST,
    *,
    scheme: str = "http",
    options: Sequence[str] = (),
    port: int = 0,
) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """The same, and the process itself, to do something to it.

    Args:
        enter: What to put before its command, and before one that looks whether it answers at *host*.
        port: To listen on; 0 takes a free one.
    """
    program = shutil.which("etcd")
    if program is None:
        raise Unavailable("etcd is not installed: apt-get install etcd-server")
    port, peers = port or free_port(), free_port()
    client, peer = f"{scheme}://{host}:{port}", f"http://{host}:{peers}"
    ask = f"import socket; socket.create_connection(({host!r}, {port}), 1)"

    def there() -> bool:
        asking = [*enter, sys.executable, "-c", ask]
        return subprocess.run(asking, capture_output=True, check=False).returncode == 0

    command = [
        *enter,
        program,
        "--data-dir", str(folder / "data"),
        "--listen-client-urls", client,
        "--advertise-client-urls", client,
        "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"default={peer}",
        "--unsafe-no-fsync",
        *options,
    ]  # fmt: skip
    with process(command, folder=folder, ready=there if enter else answers(port)) as server:
        yield port, server
