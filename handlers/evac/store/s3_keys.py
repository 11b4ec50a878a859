"""Keys that open S3: boto3's chain finds them, obstore signs with them, and they are renewed in time.

obstore has a chain of its own, without profiles, SSO and credential processes.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from evac.errors import StoreError
from evac.store.s3_aside import SECONDS, ask_blocking
from evac.store.threads import in_thread

if TYPE_CHECKING:  # it exists for type checkers alone
    from obstore.store import S3Credential

# obstore asks again when less than five minutes are left; a little more, so that we have new ones.
EARLY = timedelta(minutes=6)
# After new ones could not be had; those that we have are good meanwhile.
PAUSE = timedelta(seconds=10)


@dataclass(frozen=True)
class Keys:
    """What signs a request; its text form shows none of it."""

    access: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: datetime | None = None

    def due(self, now: datetime, *, early: timedelta = EARLY) -> bool:
        """Whether it is time for new ones."""
        return self.expires is not None and self.expires - early <= now


class Chain:
    """The keys of this process; a callable as obstore wants it.

    Static ones in the environment are taken as they are, without asking anybody. New ones are found in the
    background while the old ones are good: nobody waits for them before that.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._aside = Lock()
        self._keys: Keys | None = None
        self._renewing = False
        self._not_before = datetime.min.replace(tzinfo=UTC)
        self.region: str | None = None

    def forget(self) -> None:
        """The store takes these keys no more: find others."""
        with self._lock:
            self._keys = None

    async def ready(self) -> Keys:
        """The keys, found now if need be.

        Raises:
            StoreError: There are none.
        """
        keys = self._good()
        return keys if keys is not None else await in_thread(self._renewed)

    def __call__(self) -> "S3Credential":
        """For obstore's threads."""
        keys = self._good() or self._renewed(Event())
        return {
            "access_key_id": keys.access,
            "secret_access_key": keys.secret,
            "token": keys.token,
            "expires_at": keys.expires,
        }

    def _good(self) -> Keys | None:
        """Those that we have, while they open anything; new ones are on their way when it is time."""
        keys, now = self._keys, datetime.now(UTC)
        if keys is None or keys.due(now, early=timedelta()):
            return None
        if keys.due(now):
            self._renew_aside(now)
        return keys

    def _renew_aside(self, now: datetime) -> None:
        with self._aside:
            if self._renewing or now < self._not_before:
                return
            self._renewing = True
            self._not_before = now + PAUSE
        # It ends within a minute, and nobody waits for it at the interpreter's end.
        Thread(target=self._renew, name="evac-s3-keys", daemon=True).start()

    def _renew(self) -> None:
        try:
            with suppress(StoreError):  # told when there are none any more
                self._keys = self._found(Event())
        finally:
            self._renewing = False

    def _renewed(self, stop: Event) -> Keys:
        with self._lock:  # one asks, and all others wait for what it brings
            if (keys := self._good()) is None:
                keys = self._keys = self._found(stop)
            return keys

    def _found(self, stop: Event) -> Keys:
        access = os.environ.get("AWS_ACCESS_KEY_ID")
        secret = os.environ.get("AWS_SECRET_ACCESS_KEY")
        if access and secret:
            return Keys(access, secret, os.environ.get("AWS_SESSION_TOKEN"))
        answer: dict[str, Any] = ask_blocking({"do": "credentials"}, "credentials", SECONDS, stop)
        self.region = answer["region"]
        expires = answer["expires"]
        return Keys(
            answer["access"],
            answer["secret"],
            answer["token"],
            datetime.fromisoformat(expires) if expires else None,
        )
