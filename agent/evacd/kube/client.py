"""Requests to the Kubernetes API server; what goes wrong comes back as `Failed`.

Plain aiohttp and not a client package: kubernetes_asyncio costs 37 MiB of RSS (measured, in a
daemon that has 60), and a handful of requests need nothing of what lightkube brings.

Source: kubernetes.io/docs/reference/using-api/api-concepts. Read 2026-10.
"""

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeAlias

import aiohttp

from evacd.apart import apart
from evacd.kube.access import Access

# Beyond what a node object is ever: etcd takes 1.5 MiB.
LINE_LIMIT = 4 * 1024 * 1024
# Longer than any message that helps.
_MOST_MESSAGE = 300

_CURES = {
    401: "the service account's token is refused: is it projected into this pod, and fresh?",
    403: "grant evacd's service account get, list and watch on nodes (a ClusterRole)",
    404: "is this a Kubernetes API server?",
    429: "the API server is busy; asked again",
}
BUSY = "the API server is in trouble; asked again"
_UNREACHABLE = "is the API server up? a network policy may block it; hostNetwork: true may help"
_FILES = "run in a pod with a service account, or name its token and CA file"

ERRORS = (aiohttp.ClientError, OSError, EOFError, ValueError)


@dataclass(frozen=True)
class Limits:
    """How long things may take; all in seconds.

    Attributes:
        connect: To be connected, TLS included.
        read: From there to the end of an answer.
        hold: How long the server is asked to keep a watch open; whole seconds.
        slack: What a watch may take beyond that.
        quiet: Of a watch without a word before another one takes its place. A server sends a
            bookmark each minute; what is between here and there may hold all of it back.
    """

    connect: float = 2.0
    read: float = 5.0
    hold: float = 240.0
    slack: float = 10.0
    quiet: float = 90.0


@dataclass(frozen=True)
class Answer:
    """What the server said.

    Attributes:
        document: Out of its JSON; never None.
        date: The answer's `Date` header; "" where there is none.
    """

    document: object
    date: str = ""


@dataclass(frozen=True)
class Failed:
    """No answer that means anything.

    Attributes:
        reason: What happened, in a few words.
        cure: What a person can most likely do about it; may be empty.
        status: HTTP status of what was answered; 0 where there was no answer.
        message: What the server itself said of a refusal; may be empty.
        retry_after: Seconds that it asks for before another try.
    """

    reason: str
    cure: str = ""
    status: int = 0
    message: str = ""
    retry_after: float = 0.0


Credentials: TypeAlias = tuple[str, ssl.SSLContext]


class Client:
    """Asks one API server; never through a proxy, and never following it elsewhere."""

    def __init__(
        self, session: aiohttp.ClientSession, access: Access, *, limits: Limits | None = None
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            session: One that does not trust the proxy environment.
        """
        if session.trust_env:
            raise ValueError("the session must not trust the proxy environment")
        self.limits = limits or Limits()
        self._session = session
        self._access = access
        self._trusted: tuple[bytes, ssl.SSLContext] | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        kind: str = "application/json",
    ) -> Answer | Failed:
        """One request and its answer, whatever the far end does within the time limits.

        Args:
            path: Begins with a slash.
            body: Goes as JSON; None for none.
            kind: Media type of the body: of a patch it says how it is meant.
        """
        credentials = await self.credentials()
        if isinstance(credentials, Failed):
            return credentials
        total = self.limits.connect + self.limits.read
        try:
            async with self.request(
                credentials, method, path, params or {}, total, body=body, kind=kind
            ) as response:
                raw = bytearray()
                async for chunk in response.content.iter_any():
                    raw += chunk
                    if len(raw) > LINE_LIMIT:
                        response.close()
                        # With its status: another try would get as much.
                        reason = f"the answer is over {LINE_LIMIT} bytes"
                        return Failed(reason, _CURES[404], response.status)
                document = await _parsed(bytes(raw))
                if not 200 <= response.status < 300:
                    return _refused(response, document)
                if document is None:
                    # A proxy's page, or half of what was meant: no word of an API server's.
                    return Failed("the answer is no JSON", _CURES[404])
                return Answer(document, response.headers.get("Date", ""))
        except ERRORS as error:
            return self.failed(error)

    async def credentials(self) -> Credentials | Failed:
        """Token and trust as the files are now; a disk that hangs is not waited for."""
        try:
            async with asyncio.timeout(self.limits.read):
                return await apart(self._read)
        except TimeoutError:
            return Failed(f"{self._access.token_file}: not read in time", _FILES)

    def request(
        self,
        credentials: Credentials,
        method: str,
        path: str,
        params: Mapping[str, str],
        total: float,
        *,
        body: object = None,
        kind: str = "application/json",
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """A request whose answer the caller reads; raises `ERRORS`."""
        token, context = credentials
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        data = None
        if body is not None:
            headers["Content-Type"], data = kind, json.dumps(body).encode()
        return self._session.request(
            method,
            f"{self._access.url}{path}",
            params=params,
            headers=headers,
            data=data,
            allow_redirects=False,
            ssl=context,
            timeout=aiohttp.ClientTimeout(
                total=total, connect=self.limits.connect, sock_connect=self.limits.connect
            ),
        )

    def failed(self, error: Exception) -> Failed:
        """One of `ERRORS`, in words."""
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return Failed(
                    "the API server's certificate is not to be trusted: "
                    f"{error.certificate_error.args[-1]}"[:160],
                    f"is {self._access.ca_file} this cluster's CA, and does the certificate "
                    f"name the address in {self._access.url}?",
                )
            case aiohttp.ClientConnectorSSLError():
                return Failed("no TLS with the API server", _UNREACHABLE)
            case aiohttp.ConnectionTimeoutError():
                limit = self.limits.connect
                return Failed(f"no connection within {limit:g} s", _UNREACHABLE)
            case TimeoutError():
                return Failed("no answer in time", BUSY)
            case aiohttp.ClientConnectorError():
                number = error.os_error.errno
                why = os.strerror(number) if number and number > 0 else str(error.os_error)
                return Failed(f"no connection: {why}", _UNREACHABLE)
            case ValueError():
                return Failed(str(error), _CURES[404])
        return Failed(f"the connection broke: {type(error).__name__}", BUSY)

    def _read(self) -> Credentials | Failed:
        access = self._access
        try:
            token = access.token_file.read_bytes().strip().decode("ascii")
            ca = access.ca_file.read_bytes()
        except OSError as error:
            return Failed(f"{error.filename}: {error.strerror}", _FILES)
        except UnicodeDecodeError:
            token = ""
        if not token or not token.isprintable():
            return Failed(f"{access.token_file}: holds no token", _FILES)
        if self._trusted is None or self._trusted[0] != ca:
            try:
                context = ssl.create_default_context(cadata=ca.decode("ascii"))
            except (ssl.SSLError, ValueError):
                return Failed(f"{access.ca_file}: holds no certificate", _FILES)
            self._trusted = ca, context
        return token, self._trusted[1]


def parse_json(raw: bytes) -> object:
    """The document; None where it is none."""
    try:
        found: object = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return found


def refusal(status: int) -> Failed:
    """An answer that is no success, by its status alone."""
    cure = _CURES.get(status, BUSY if status >= 500 else _CURES[404])
    return Failed(f"HTTP {status}", cure, status)


async def _parsed(raw: bytes) -> object:
    # 100 pods of a crowded node are a megabyte, which costs the loop its 10 ms.
    return await apart(lambda: parse_json(raw)) if len(raw) > 65536 else parse_json(raw)


def _refused(response: aiohttp.ClientResponse, document: object) -> Failed:
    plain = refusal(response.status)
    said = document.get("message") if isinstance(document, Mapping) else None
    message = "".join(c if c.isprintable() else " " for c in said) if isinstance(said, str) else ""
    after = response.headers.get("Retry-After", "")
    seconds = float(after) if after.isdecimal() and len(after) < 6 else 0.0
    return Failed(plain.reason, plain.cure, plain.status, message[:_MOST_MESSAGE], seconds)
