"""A byte sink: answers as S3, Azure and Google Cloud Storage do, and throws bodies away unread.

Prints its port. With a certificate's PEM file as its argument it speaks TLS. Bodies are discarded in the
kernel (MSG_TRUNC), so that what a bench sees is the sender; of S3 it keeps what a flush reads back (`kept.py`).
"""

import json
import re
import socket
import ssl
import sys
import threading
from contextlib import suppress

from sink.kept import SMALL, Kept

PIECE = 1024 * 1024
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
# Bytes of part objects since the last compose: what it then says to have made.
_lock = threading.Lock()
_parts = 0
_kept = Kept()


def main() -> None:
    """Serve until killed."""
    context = None
    if len(sys.argv) > 1:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1])
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listening.getsockname()[1], flush=True)
    while True:
        client, _ = listening.accept()
        threading.Thread(target=serve, args=(client, context), daemon=True).start()


def serve(client: socket.socket, context: ssl.SSLContext | None) -> None:
    """All requests of one connection."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError), client:
        if context is not None:
            client = context.wrap_socket(client, server_side=True)
        scratch, held = memoryview(bytearray(PIECE)), b""
        while True:
            while b"\r\n\r\n" not in held:
                got = client.recv(65536)
                if not got:
                    return
                held += got
            head, _, held = held.partition(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            method, path, _ = lines[0].split(" ", 2)
            headers = {n.lower(): v.strip() for n, _, v in (x.partition(":") for x in lines[1:])}
            if "expect" in headers:
                client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = int(headers.get("content-length", 0))
            here, held = held[:length], held[length:]
            left = length - len(here)
            small = length <= SMALL
            while left > 0:
                if small:
                    got_n = client.recv_into(scratch, left)
                    here += scratch[:got_n].tobytes()
                elif context is None:
                    got_n = client.recv_into(scratch, min(PIECE, left), socket.MSG_TRUNC)
                else:
                    got_n = client.recv_into(scratch, min(PIECE, left))
                if got_n == 0:
                    return
                left -= got_n
            client.sendall(answer(method, path, headers, length, here if small else None))


def answer(
    method: str, path: str, headers: dict[str, str], length: int, body: bytes | None
) -> bytes:
    """What the store in question would say."""
    if "/storage/v1/" in path or path.startswith("/resume"):
        return google(method, path, headers, length)
    if "comp=" in path or "x-ms-version" in headers:
        done = 204 if method == "DELETE" else 201
        return reply(done, more="x-ms-request-server-encrypted: true\r\n")
    status, said, more = _kept.answer(method, path, headers, length, body)
    return reply(status, said, more=more, head=method == "HEAD")


def google(method: str, path: str, headers: dict[str, str], length: int) -> bytes:
    """As the JSON API does."""
    global _parts
    if method == "DELETE":
        return reply(204)
    if method == "GET":
        return reply(200, "{}")
    made = {"name": "o", "bucket": "b", "size": str(length), "timeCreated": "2026-01-01T00:00:00Z"}
    if path.endswith("/compose"):
        with _lock:
            made["size"], _parts = str(_parts), 0
    elif "uploadType=resumable" in path:
        return reply(200, more=f"Location: http://{headers['host']}/resume\r\n")
    elif path.startswith("/resume"):
        found = _RANGE.fullmatch(headers.get("content-range", ""))
        if found and int(found[2]) + 1 < int(found[3]):
            return reply(308, more=f"Range: bytes=0-{found[2]}\r\n")
        made["size"] = found[3] if found else str(length)
    else:
        with _lock:
            _parts += length
    return reply(200, json.dumps(made))


def reply(status: int, body: str | bytes = b"", *, more: str = "", head: bool = False) -> bytes:
    """One answer.

    Args:
        head: Say how long the body is, and leave it out.
    """
    body = body.encode() if isinstance(body, str) else body
    start = (
        f'HTTP/1.1 {status} OK\r\nETag: "e"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
        f"{more}Content-Length: {len(body)}\r\n\r\n"
    )
    return start.encode() + (b"" if head else body)


if __name__ == "__main__":
    main()
