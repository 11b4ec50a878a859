"""Amazon S3 and what speaks its protocol: ``s3://bucket/prefix?endpoint=http://host:port&region=...``.

Bodies go through obstore; the chain of credentials and abandoned multipart uploads are boto3's, in
a process of its own. Options left out come from ``AWS_REGION``, ``AWS_ENDPOINT_URL`` and
``AWS_CA_BUNDLE``; keys never stand in the URL.

Turned down: obstore's conditional put for bodies, which turns multipart off; a checksum per part
at flush time, which costs 0.2 CPU seconds per GB and repeats what the manifest has.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypedDict

from obstore.store import S3Store as ObstoreS3

from evac.errors import ConfigError, StoreError
from evac.generation import Generation
from evac.manifest import is_file_name
from evac.store.blobs import BlobStore, Client
from evac.store.location import Location, parse
from evac.store.s3_aside import ask
from evac.store.s3_keys import Chain

OPTIONS = ("connections", "endpoint", "region", "timeout")
# No single part takes longer, retries included: an upload in which none has ended for this long and
# `older_than` is dead, however slow its link.
PART_SECONDS = 300.0
# The store is as unreachable as it was a moment ago, probably; `clean` comes by later.
ABORT_SECONDS = 10.0

# All stores of a process open with the same keys, and ask for them once.
_chain = Chain()


class _Upload(TypedDict):
    key: str
    id: str
    last: str


class S3Store(BlobStore):
    """A `Store` in a bucket.

    Args:
        location: As `parse` gave it.
        chain: Where keys come from; the process's own by default.

    Raises:
        ConfigError: The CA bundle of the environment cannot be read.
    """

    def __init__(self, location: Location, *, chain: Chain | None = None) -> None:
        super().__init__(location)
        self._chain = chain or _chain
        options, env = location.options, os.environ
        self._endpoint = (
            options.get("endpoint")
            or env.get("AWS_ENDPOINT_URL_S3")
            or env.get("AWS_ENDPOINT_URL")
            or None
        )
        self._region = (
            options.get("region") or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or None
        )
        self._trust: bytes | None = None
        if bundle := env.get("AWS_CA_BUNDLE"):
            try:
                self._trust = Path(bundle).read_bytes()
            except OSError as error:
                raise ConfigError("AWS_CA_BUNDLE", bundle, "a PEM file") from error

    @classmethod
    def from_url(cls, url: str) -> "S3Store":
        """The store behind ``s3://...``.

        Raises:
            ConfigError: Malformed, or it holds what may not stand in a URL.
        """
        return cls(parse(url, options=OPTIONS))

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `BlobStore.put`."""
        with _writing.begun(self._place(key)):
            await super().put(key, data, progress=progress)

    async def preflight(self) -> None:
        """Ask for the bucket itself.

        Raises:
            StoreRejected: It is not there, or not for us.
            StoreUnavailable: It cannot be asked right now.
        """
        await self._ask("preflight")

    async def clean(self, *, older_than: float = 60.0) -> int:
        """Abort uploads of bodies below our prefix that nobody continues; others' never.

        Args:
            older_than: Seconds since its last part was there, and five minutes in which one may be on its
                way.
        """
        prefix = self._location.prefix
        answer = await self._ask("uploads", prefix=f"{prefix}/" if prefix else "")
        uploads: Sequence[_Upload] = answer["uploads"]
        # By the store's clock, as the uploads' dates are: ours may be wrong.
        now = parsedate_to_datetime(answer["now"]) if answer["now"] else datetime.now(UTC)
        before = now - timedelta(seconds=older_than + PART_SECONDS)
        dead = [
            one
            for one in uploads
            if is_body(one["key"].removeprefix(f"{prefix}/" if prefix else ""))
            and datetime.fromisoformat(one["last"]) <= before
        ]
        return await self._abort(dead) if dead else 0

    def _open(self, seconds: float) -> Client:
        options: dict[str, Any] = {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=5),
            "allow_http": bool(self._endpoint and self._endpoint.startswith("http://")),
        }
        if self._trust is not None:
            options["root_certificate"] = self._trust
        settings: dict[str, Any] = {
            "region": self._region or self._chain.region or "us-east-1",
            "unsigned_payload": True,
            "disable_bulk_delete": True,  # one key at a time is what we delete, and all stores know it
            # A dot in a bucket's name fits no wildcard certificate.
            "virtual_hosted_style_request": self._endpoint is None
            and "." not in self._location.bucket,
        }
        if self._endpoint is not None:
            settings["endpoint"] = self._endpoint
        return ObstoreS3(
            self._location.bucket,
            prefix=self._location.prefix or None,
            config=settings,  # type: ignore[arg-type]  # a TypedDict of exactly these
            client_options=options,  # type: ignore[arg-type]  # the same
            retry_config=dict(self.retry),  # type: ignore[arg-type]  # the same
            credential_provider=self._chain,
        )

    async def _ready(self) -> None:
        if self._expired:
            self._expired = False
            self._chain.forget()
            self._clients.clear()  # each has kept the old keys
        await self._chain.ready()

    async def _abandoned(self, key: str) -> None:
        """Abort the upload of *key*, unless this process has begun to write it anew.

        Nothing tells whose an upload is: those two could not be told apart, and `clean` comes by later. Another
        process that writes the same body has to begin again.
        """
        name, place = self._location.key(key), self._place(key)
        seen = _writing.times(place)
        with suppress(StoreError):
            uploads: Sequence[_Upload] = (
                await self._ask("uploads", prefix=name, seconds=ABORT_SECONDS)
            )["uploads"]
            if _writing.alone(place, seen):
                await self._abort([one for one in uploads if one["key"] == name])

    def _place(self, key: str) -> str:
        return f"{self._endpoint or ''}/{self._location.bucket}/{self._location.key(key)}"

    async def _abort(self, uploads: Sequence[_Upload]) -> int:
        answer = await self._ask("abort", uploads=uploads, seconds=ABORT_SECONDS)
        return int(answer["aborted"])

    async def _ask(self, verb: str, *, seconds: float = 60.0, **more: object) -> dict[str, Any]:
        keys = await self._chain.ready()
        request = {
            "do": verb,
            "bucket": self._location.bucket,
            "endpoint": self._endpoint,
            "region": self._region or self._chain.region,
            "keys": {"access": keys.access, "secret": keys.secret, "token": keys.token},
            **more,
        }
        return await ask(request, key=self._location.bucket, seconds=seconds)


class _Writing:
    """Which objects this process is writing, whichever of its stores, loops or threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._now: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()

    @contextmanager
    def begun(self, place: str) -> Iterator[None]:
        """While one put of *place* lasts."""
        with self._lock:
            self._now[place] += 1
            self._begun[place] += 1
        try:
            yield
        finally:
            with self._lock:
                self._now[place] -= 1
                if not self._now[place]:
                    del self._now[place], self._begun[place]

    def times(self, place: str) -> int:
        """How many have begun since none was under way."""
        return self._begun[place]

    def alone(self, place: str, seen: int) -> bool:
        """Whether the caller's put is the only one, and none has come since *seen*."""
        with self._lock:
            return self._now[place] <= 1 and self._begun[place] == seen


_writing = _Writing()


def is_body(key: str) -> bool:
    """Whether a key is one under which we would put something of many parts; weights' bodies as well."""
    *_, above, folder, name = ("", "", *key.split("/"))
    if Generation.parse(folder) is None and Generation.parse(above) is not None:
        name = f"{folder}/{name}"
    elif Generation.parse(folder) is None:
        return False
    return is_file_name(name)
