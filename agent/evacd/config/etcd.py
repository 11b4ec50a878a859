"""What the etcd is shown that torchrun jobs meet in: TLS, and a user."""

# ruff: noqa: RUF009 - setting() is dataclasses.field() with the table's columns

from dataclasses import dataclass
from pathlib import Path

from evacd.config import kinds
from evacd.config.declare import setting


@dataclass(frozen=True)
class EtcdConfig:
    """For departures into etcd. A job names its etcd itself; only those named here are shown anything.

    Attributes:
        endpoints: URLs without a path, as the jobs name them.
        ca_file: Certificates of those who may vouch for an etcd; None: those of this machine.
        cert_file: Our own certificate, and `key_file` its key; None where etcd wants none.
        user: It reads and writes below ``evac/``; "" where etcd has no users. A certificate does not
            make one.
        password_file: Its first line is the user's password.
    """

    endpoints: tuple[str, ...] = setting(
        kinds.ETCD_URLS, (), "etcd endpoints that are shown the certificate and the user below"
    )
    ca_file: Path | None = setting(
        kinds.SOME_PATH, None, "path of the certificates that vouch for an etcd (https)"
    )
    cert_file: Path | None = setting(
        kinds.SOME_PATH, None, "path of the client certificate that etcd is shown (https)"
    )
    key_file: Path | None = setting(
        kinds.SOME_PATH, None, "path of the key of that certificate, without a passphrase"
    )
    user: str = setting(kinds.TEXT, "", "name of the user in etcd; by default none")
    password_file: Path | None = setting(
        kinds.SOME_PATH, None, "path of a file whose first line is that user's password"
    )
