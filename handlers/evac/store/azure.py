"""Azure Blob Storage: ``az://container/prefix?account=name`` (and ``endpoint=`` for others than Azure's own).

obstore finds what opens it by itself: an account key, SAS or service principal in ``AZURE_STORAGE_*``
variables, a workload identity, or the machine's managed identity.
"""

import os
from datetime import timedelta
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import AzureStore as ObstoreAzure

from evac.errors import ConfigError
from evac.store.blobs import BlobStore, Client
from evac.store.location import Location, parse

OPTIONS = ("account", "connections", "endpoint", "timeout")


class AzureStore(BlobStore):
    """A `Store` in a container.

    Raises:
        ConfigError: No account, or a key that is none.
    """

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self._account = location.options.get("account") or os.environ.get(
            "AZURE_STORAGE_ACCOUNT_NAME"
        )
        self._endpoint = location.options.get("endpoint") or os.environ.get(
            "AZURE_STORAGE_ENDPOINT"
        )
        if not self._account:
            raise ConfigError("store", self.url, "?account=name, or AZURE_STORAGE_ACCOUNT_NAME")
        self._client()  # a malformed key is told now

    @classmethod
    def from_url(cls, url: str) -> "AzureStore":
        """The store behind ``az://...``.

        Raises:
            ConfigError: Malformed, or it holds what may not stand in a URL.
        """
        return cls(parse(url, options=OPTIONS))

    async def clean(self, *, older_than: float = 60.0) -> int:
        """Nothing to do: Azure forgets blocks that nobody has committed, after a week.

        They are under no name, and no call removes them without touching the blob itself.
        """
        return 0

    async def _ready(self) -> None:
        if self._expired:
            self._expired = False
            self._clients.clear()  # a new one fetches a new token

    def _open(self, seconds: float) -> Client:
        options: dict[str, Any] = {
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=5),
            "allow_http": bool(self._endpoint and self._endpoint.startswith("http://")),
        }
        settings: dict[str, Any] = {"account_name": self._account}
        if self._endpoint:
            settings["endpoint"] = self._endpoint
        try:
            return ObstoreAzure(
                self._location.bucket,
                prefix=self._location.prefix or None,
                config=settings,  # type: ignore[arg-type]  # a TypedDict of exactly these
                client_options=options,  # type: ignore[arg-type]  # the same
                retry_config=dict(self.retry),  # type: ignore[arg-type]  # the same
            )
        except BaseError:
            # Not `from error`: its text may repeat the key.
            raise ConfigError("store", self.url, "a whole AZURE_STORAGE_ACCOUNT_KEY") from None

    async def _abandoned(self, key: str) -> None:
        """Blocks that nobody commits are no blob."""
