"""What the benches of object stores share: the sink, bytes to send, a raw sender, a clock."""

import mmap
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
MIB = 1024 * 1024
PAGE = 4096
MADV_POPULATE_READ = 22  # Linux 5.14; mmap does not name it


@contextmanager
def sink(certificate: Path | None = None) -> Iterator[int]:
    """The port of a sink of its own process; with a certificate it speaks TLS."""
    command = [sys.executable, "-m", "sink.serve"]
    command += [str(certificate.absolute())] if certificate else []
    above = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=above, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


def staged(size: int) -> memoryview:
    """Bytes in a populated memfd, as a slot has them."""
    fd = os.memfd_create("bench")
    os.ftruncate(fd, size)
    for start in range(0, size, 16 * MIB):
        os.pwrite(fd, os.urandom(min(16 * MIB, size - start)), start)
    memory = mmap.mmap(fd, size)
    memory.madvise(MADV_POPULATE_READ)
    return memoryview(memory)


def timed(work: Callable[[], object], size: int) -> Callable[[], Mapping[str, float]]:
    """Rate and CPU of what *work* sends from this process."""

    def run() -> Mapping[str, float]:
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        work()
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"gb_per_s": size / 1e9 / seconds, "cpu_s_per_gb": cpu / (size / 1e9)}

    return run


def raw(data: memoryview, port: int, trust: ssl.SSLContext | None = None) -> None:
    """The ceiling: two connections, one `sendall` each, nothing but a request's head around it."""
    half = data.nbytes // 2

    def send(part: memoryview) -> None:
        with socket.create_connection((HOST, port)) as plain:
            connection = trust.wrap_socket(plain, server_hostname=HOST) if trust else plain
            head = f"PUT /raw HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {part.nbytes}\r\n\r\n"
            connection.sendall(head.encode())
            connection.sendall(part)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.close()

    threads = [threading.Thread(target=send, args=(one,)) for one in (data[:half], data[half:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
