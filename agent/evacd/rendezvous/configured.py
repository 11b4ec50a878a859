"""Who is told that this node leaves, as it was configured."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from evac.errors import ConfigError
from evac.rendezvous.etcd_access import Access, EtcdFiles
from evacd.clock import Clock
from evacd.config import Config
from evacd.rendezvous import Agreed, Announcer
from evacd.rendezvous.etcd import Etcds
from evacd.rendezvous.jobstore import JobStoreAnnouncer
from evacd.rendezvous.webhook import WebhookAnnouncer


@dataclass(frozen=True)
class Secrets:
    """What departures go with.

    Attributes:
        signature: Signs those by webhook; None where nothing does.
        etcds: What each etcd is shown.
    """

    signature: bytes | None = field(default=None, repr=False)
    etcds: Etcds = field(default_factory=Etcds)


def read_secrets(config: Config) -> Secrets:
    """Read and check them.

    Raises:
        ConfigError: A file cannot be read or holds nothing of use, or one of two is missing.
    """
    return Secrets(_signature(config), read_etcds(config))


def announcers(
    config: Config,
    registered: Callable[[str], Sequence[str]],
    session: aiohttp.ClientSession,
    clock: Clock,
    secrets: Secrets,
    agreed: Callable[[Agreed], None],
) -> Iterator[Announcer]:
    """All that are configured.

    Args:
        registered: Rendezvous stores that a job's workers have named, the newest first.
        agreed: Told what a job's nodes have chosen.
    """
    departure = config.departure
    if departure.webhook_url:
        yield WebhookAnnouncer(
            departure.webhook_url,
            session,
            timeout_seconds=departure.timeout_seconds,
            clock=clock,
            secret=secrets.signature,
        )
    if departure.rendezvous or departure.registered:
        yield JobStoreAnnouncer(
            registered if departure.registered else lambda _job: (),
            session,
            configured=departure.rendezvous,
            timeout_seconds=departure.timeout_seconds,
            clock=clock,
            agreed=agreed,
            etcds=secrets.etcds,
        )


def _signature(config: Config) -> bytes | None:
    path = config.departure.secret_file
    if path is None:
        return None
    key = "departure.secret_file"
    where = config.origins.get(key, str(path))
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        expected = f"a file that can be read ({path}: {error.strerror or error})"
        raise ConfigError(where, key, expected) from error
    if not secret:
        raise ConfigError(where, key, f"a file with something in it ({path} is empty)")
    return secret


def read_etcds(config: Config) -> Etcds:
    """What each etcd is shown.

    Raises:
        ConfigError: A file cannot be used, or one of two settings is missing.
    """
    etcd = config.etcd
    pairs = (("cert_file", "key_file"), ("key_file", "cert_file"))
    for one, other in (*pairs, ("user", "password_file"), ("password_file", "user")):
        if getattr(etcd, one) and not getattr(etcd, other):
            raise _wrong(config, one, f"etcd.{other} beside it")
    for one in ("cert_file", "user"):
        if getattr(etcd, one) and not etcd.endpoints:
            raise _wrong(config, one, "etcd.endpoints beside it: which etcd may be shown that")
    ca, cert, key, password = map(
        _text, (etcd.ca_file, etcd.cert_file, etcd.key_file, etcd.password_file)
    )
    files = EtcdFiles(ca, cert, key, etcd.user, password)
    try:
        Access(files).read(tls=bool(ca or cert))
    except ValueError as error:
        raise _wrong(config, "endpoints", f"files that can be used ({error})") from error
    return Etcds(etcd.endpoints, files)


def _text(path: Path | None) -> str:
    return str(path) if path else ""


def _wrong(config: Config, name: str, expected: str) -> ConfigError:
    key = f"etcd.{name}"
    return ConfigError(config.origins.get(key, key), key, expected)
