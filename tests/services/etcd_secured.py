"""A real etcd as it is run in production: TLS, client certificates, users with a password and a role."""

import base64
import json
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import trustme

from evac.rendezvous.address import ETCD_TLS, Address
from evac.rendezvous.etcd_access import EtcdFiles
from tests.services.etcd import etcd_process
from tests.services.process import HOST

USER, PASSWORD = "job", "its words: \"and\" 'more'"
READER, STRANGER = "reader", "stranger"
# Their passwords are no secret of any test.
_ROOT = "root"


@dataclass(frozen=True)
class Secured:
    """One.

    Attributes:
        files: With which everything below ``evac/`` may be read and written.
        folder: More files can be put there.
    """

    port: int
    files: EtcdFiles
    folder: Path
    process: "subprocess.Popen[bytes]"

    def address(self, run: str = "run") -> Address:
        """Of a job."""
        return Address(ETCD_TLS, HOST, self.port, f"evac/{run}")

    def user(self, name: str, password: str) -> EtcdFiles:
        """Who comes as that user."""
        path = self.folder / f"password-{token_hex(4)}"
        path.write_text(f"{password}\n")
        return replace(self.files, user=name, password=str(path))

    def conf(self) -> dict[str, str]:
        """The same as ``--rdzv-conf``."""
        files = self.files
        return {
            "protocol": "https", "ca_cert": files.ca, "ssl_cert": files.cert,
            "ssl_cert_key": files.key, "user": files.user, "password_file": files.password,
        }  # fmt: skip

    def ask(self, path: str, token: str = "", **document: object) -> dict[str, Any]:
        """As an administrator, past all that is tested."""
        headers = {"Authorization": token} if token else {}
        body = json.dumps(document).encode()
        url = f"https://{HOST}:{self.port}{path}"
        context = ssl.create_default_context(cafile=self.files.ca)
        context.load_cert_chain(self.files.cert, self.files.key)
        request = urllib.request.Request(url, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def as_root(self, path: str, **document: object) -> dict[str, Any]:
        """The same, once users are."""
        token = self.ask("/v3/auth/authenticate", name=_ROOT, password=_ROOT)["token"]
        return self.ask(path, token, **document)

    def keys(self, prefix: str = "evac/") -> list[str]:
        """All below."""
        first = prefix.encode()
        behind = first[:-1] + bytes([first[-1] + 1])
        found = self.as_root("/v3/kv/range", key=text(first), range_end=text(behind))
        return [base64.b64decode(one["key"]).decode() for one in found.get("kvs", [])]


def text(value: bytes) -> str:
    """As it travels."""
    return base64.b64encode(value).decode()


@contextmanager
def etcd_secured(folder: Path) -> Iterator[Secured]:
    """One, with users.

    Raises:
        Unavailable: etcd is not installed here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    ca = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    served, ours = write(folder, "server", authority), write(folder, "client", authority)
    options = [
        "--cert-file", served[0], "--key-file", served[1],
        "--trusted-ca-file", str(ca), "--client-cert-auth",
        # Passwords are looked at faster than in production: a test machine has better to do.
        "--bcrypt-cost", "4",
    ]  # fmt: skip
    with etcd_process(folder / "etcd", scheme="https", options=options) as (port, process):
        files = EtcdFiles(str(ca), *ours)
        made = Secured(port, files, folder, process)
        _add_users(made)
        yield replace(made, files=made.user(USER, PASSWORD))


def write(folder: Path, name: str, authority: trustme.CA) -> tuple[str, str]:
    """A certificate of this machine, and its key."""
    issued, paths = authority.issue_cert(HOST), (folder / f"{name}.pem", folder / f"{name}.key")
    issued.cert_chain_pems[0].write_to_path(str(paths[0]))
    issued.private_key_pem.write_to_path(str(paths[1]))
    return str(paths[0]), str(paths[1])


def _add_users(etcd: Secured) -> None:
    below: Mapping[str, str] = {"key": text(b"evac/"), "range_end": text(b"evac0")}
    for role, kind in ((USER, "READWRITE"), (READER, "READ")):
        etcd.ask("/v3/auth/role/add", name=role)
        etcd.ask("/v3/auth/role/grant", name=role, perm={"permType": kind, **below})
    etcd.ask("/v3/auth/role/add", name=_ROOT)
    passwords = {_ROOT: _ROOT, USER: PASSWORD, READER: READER, STRANGER: STRANGER}
    for user, password in passwords.items():
        etcd.ask("/v3/auth/user/add", name=user, password=password)
        if user != STRANGER:
            etcd.ask("/v3/auth/user/grant", user=user, role=user)
    etcd.ask("/v3/auth/enable")
