"""Azurite, Microsoft's own emulator of Azure's Blob storage: npm's `azurite`.

`make setup` installs it below `.venv/node` where npm is there; without node its tests are skipped.
"""

import base64
import hashlib
import hmac
import http.client
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from tests.services.process import HOST, Unavailable, answers, free_port, process

# Its one account: fixed and public, the same in every Azurite.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2021-12-02"


@dataclass(frozen=True)
class AzureServer:
    """Where it runs."""

    port: int

    @property
    def endpoint(self) -> str:
        """``http://host:port/account``."""
        return f"http://{HOST}:{self.port}/{ACCOUNT}"

    @property
    def environment(self) -> dict[str, str]:
        """What a workload would have in its environment."""
        return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}

    def make_container(self, name: str) -> None:
        """Make one; two lines of signature spare an SDK."""
        date = formatdate(usegmt=True)
        headers = f"x-ms-date:{date}\nx-ms-version:{_VERSION}\n"
        signed = "PUT\n" + "\n" * 11 + headers + f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        try:
            connection.request(
                "PUT",
                f"/{ACCOUNT}/{name}?restype=container",
                headers={
                    "x-ms-date": date,
                    "x-ms-version": _VERSION,
                    "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
                    "Content-Length": "0",
                },
            )
            answer = connection.getresponse()
            if answer.status not in (201, 409):
                raise RuntimeError(f"{answer.status}: {answer.read().decode()}")
        finally:
            connection.close()


@contextmanager
def azurite(folder: Path) -> Iterator[AzureServer]:
    """Azurite's blob service on a disk folder of its own."""
    node = shutil.which("node")
    if node is None:
        raise Unavailable("node is not installed: apt-get install nodejs npm, then make setup")
    port = free_port()
    command = [
        node, str(_program()), "--blobHost", HOST, "--blobPort", str(port), "--location",
        str(folder), "--skipApiVersionCheck", "--disableTelemetry", "--silent",
    ]  # fmt: skip
    with process(command, folder=folder, ready=answers(port)):
        yield AzureServer(port)


def _program() -> Path:
    root = Path(__file__).parents[2] / ".venv" / "node"
    given = os.environ.get("EVAC_TEST_NODE_MODULES")
    modules = Path(given) if given else root / "node_modules"
    program = modules / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        raise Unavailable("azurite is not installed: make setup, with npm there")
    return program
