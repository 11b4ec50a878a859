"""Google's token endpoint: whoever shows a service account's signed assertion gets the next token.

A real server on loopback, and the file of an account that points to it. It checks no signature: what it
is for is to see who asks, how often, and what becomes of a flush when it gives none.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.services.process import HOST

GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class Tokens:
    """Listens on a free port of its own until closed.

    Attributes:
        given: How many tokens so far; they are `bearer` of 1, 2, 3 and so on.
        seconds: How long a token is good, as the answer says.
        refuses: Status and body instead of a token; no answer at all where the status is 0.
    """

    def __init__(self) -> None:
        self.given = 0
        self.seconds = 3600
        self.refuses: tuple[int, bytes] | None = None
        self._lock = threading.Lock()
        tokens = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, body = tokens._answer(asked)
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: whoever wants to know asks `given`."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def account(self, folder: Path) -> Path:
        """A new file for ``GOOGLE_APPLICATION_CREDENTIALS``."""
        path = folder / "account.json"
        document = {
            "type": "service_account",
            "project_id": "test",
            "private_key_id": "1",
            "private_key": _key(),
            "client_email": "evac@test.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"http://{HOST}:{self._server.server_port}/token",
        }
        path.write_text(json.dumps(document))
        return path

    def close(self) -> None:
        """Let all threads end."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, asked: dict[str, list[str]]) -> tuple[int, bytes]:
        if asked.get("grant_type") != [GRANT] or len(asked.get("assertion", [])) != 1:
            return 400, b'{"error": "invalid_request"}'
        if self.refuses is not None:
            return self.refuses
        with self._lock:
            self.given += 1
            token = {"access_token": _token(self.given), "expires_in": self.seconds}
        return 200, json.dumps({**token, "token_type": "Bearer"}).encode()


def bearer(number: int) -> str:
    """What the head of a request has that was made with that token."""
    return f"Bearer {_token(number)}"


@contextmanager
def tokens() -> Iterator[Tokens]:
    """One until the block ends."""
    made = Tokens()
    try:
        yield made
    finally:
        made.close()


def _token(number: int) -> str:
    return f"ya29.token-{number}-end"


@cache
def _key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
