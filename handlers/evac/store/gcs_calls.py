"""Google Cloud Storage's JSON API, call by call, over Google's own authorized session.

The session is the one inside google-cloud-storage; that library's blobs and writers are left out: they
read files, hold the GIL and cost four times the CPU of a memoryview handed to the socket.

Source: Cloud Storage JSON API v1 reference, Objects: insert, get, list, delete, compose (read 2026-11).
"""

import base64
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode

import google.auth
import requests
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession
from requests.adapters import HTTPAdapter

from evac.errors import StoreError, StoreRejected, StoreUnavailable
from evac.store import answers

GOOGLE = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
# Seconds to connect, and of silence: each send and each receive, not the whole request.
CONNECT = 5.0
SILENCE = 30.0
# What goes to the socket at once; between two of them a put can be stopped.
PIECE = 1024 * 1024
_BYTES = "application/octet-stream"
_REASON = re.compile(r'"reason":\s*"(\w+)"')


@dataclass(frozen=True)
class Made:
    """An object as the store describes it.

    Attributes:
        crc32c: None where the store says none.
        created: On the store's clock.
    """

    name: str
    nbytes: int
    crc32c: int | None
    created: datetime


class Body:
    """Memory that a request sends piece by piece; it may be read again, for another try.

    Args:
        alive: Called before each piece; raises to end it.
        sent: Called with the number of bytes of each piece that the socket has taken.
    """

    def __init__(
        self,
        data: memoryview,
        *,
        alive: Callable[[], None] = lambda: None,
        sent: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._data = data
        self._alive = alive
        self._sent = sent
        self._piece = data[:0]

    def __len__(self) -> int:
        return self._data.nbytes

    def __iter__(self) -> Iterator[memoryview]:
        for start in range(0, self._data.nbytes, PIECE):
            self._alive()
            self.let_go()
            self._piece = self._data[start : start + PIECE]
            yield self._piece
            self._sent(self._piece.nbytes)

    def let_go(self) -> None:
        """Hold none of the memory any more; a failed request's traceback may hold this object."""
        self._piece.release()


class Calls:
    """One bucket's calls; all block, and all may be made from several threads at once."""

    def __init__(
        self, bucket: str, *, endpoint: str | None, connections: int, silence: float = SILENCE
    ) -> None:
        self._timeout = (CONNECT, silence)
        self._bucket = quote(bucket, safe="")
        self._endpoint = (endpoint or GOOGLE).rstrip("/")
        self._connections = connections
        self._session: requests.Session | None = None

    def insert(self, name: str, body: Body, *, key: str) -> Made:
        """Write one object in one request.

        Args:
            key: What an error is about.
        """
        headers = {"Content-Type": _BYTES}
        # An empty iterable would be sent in chunks, which not everybody understands.
        content: Any = body if len(body) else b""
        url = self._upload(uploadType="media", name=name)
        try:
            return _made(self._ask("POST", url, key, data=content, headers=headers), key)
        finally:
            body.let_go()

    def create(self, name: str, data: bytes, *, key: str) -> Made:
        """Write one object where there is none.

        Raises:
            FileExistsError: There is one.
        """
        url = self._upload(uploadType="multipart", ifGenerationMatch="0")
        boundary = secrets.token_hex(16)
        described = json.dumps({"name": name, "contentType": _BYTES}).encode()
        content = b"\r\n".join(
            (
                b"--" + boundary.encode(),
                b"Content-Type: application/json; charset=UTF-8\r\n",
                described,
                b"--" + boundary.encode(),
                b"Content-Type: " + _BYTES.encode() + b"\r\n",
                data,
                b"--" + boundary.encode() + b"--\r\n",
            )
        )
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        answer = self._ask("POST", url, key, data=content, headers=headers, may=(412,))
        if answer.status_code == 412:
            raise FileExistsError(name)
        return _made(answer, key)

    def compose(self, name: str, sources: Sequence[str], *, key: str) -> Made:
        """Make one object of up to 32."""
        document = {
            "sourceObjects": [{"name": source} for source in sources],
            "destination": {"contentType": _BYTES},
        }
        url = f"{self._object(name)}/compose"
        return _made(self._ask("POST", url, key, json=document), key)

    def describe(self, name: str, *, key: str) -> Made:
        """What the store knows of an object."""
        return _made(self._ask("GET", self._object(name), key), key)

    @contextmanager
    def reading(self, name: str, start: int, nbytes: int, *, key: str) -> Iterator[Any]:
        """A range of an object as a stream with `readinto`; None where it begins at the end or after."""
        headers = {"Range": f"bytes={start}-{start + nbytes - 1}", "Accept-Encoding": "identity"}
        url = f"{self._object(name)}?alt=media"
        answer = self._ask("GET", url, key, headers=headers, may=(416,), stream=True)
        with answer:
            yield None if answer.status_code == 416 else answer.raw

    def delete(self, name: str, *, key: str) -> None:
        """Forget an object.

        Raises:
            StoreMissing: It was not there.
        """
        self._ask("DELETE", self._object(name), key)

    def list(self, prefix: str, *, key: str) -> tuple[Sequence[Made], datetime]:
        """All objects whose name begins so, and what time it is there."""
        found: list[Made] = []
        query = {"prefix": prefix, "maxResults": "1000"}
        while True:
            url = f"{self._endpoint}/storage/v1/b/{self._bucket}/o?{urlencode(query)}"
            answer = self._ask("GET", url, key)
            document = _document(answer, key)
            found += [_parsed(one, key) for one in document.get("items", ())]
            if not document.get("nextPageToken"):
                date = answer.headers.get("Date")
                return found, parsedate_to_datetime(date) if date else datetime.now(UTC)
            query["pageToken"] = document["nextPageToken"]

    def _upload(self, **query: str) -> str:
        return f"{self._endpoint}/upload/storage/v1/b/{self._bucket}/o?{urlencode(query)}"

    def _object(self, name: str) -> str:
        return f"{self._endpoint}/storage/v1/b/{self._bucket}/o/{quote(name, safe='')}"

    def _ask(
        self, method: str, url: str, key: str, *, may: Sequence[int] = (), **how: Any
    ) -> requests.Response:
        """One request.

        Args:
            may: Statuses that the caller understands.
        """
        try:
            answer = self._opened(key).request(method, url, timeout=self._timeout, **how)
        except GoogleAuthError as error:
            # Found anew the next time: a key's file may hold another one by then.
            self._session = None
            raise of_no_token(key, error) from None
        except (requests.RequestException, OSError) as error:
            raise answers.of_silence(key, repr(error)) from None
        if answer.ok or answer.status_code in may:
            return answer
        with answer:
            reason = _REASON.search(answer.text[:4096])
            raise of_answer(key, answer.status_code, reason[1] if reason else "", answer.text[:512])

    def _opened(self, key: str) -> requests.Session:
        if self._session is None:
            if self._endpoint.startswith("http://"):
                # An emulator: nobody would send a token over a line that anybody can read.
                credentials: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]  # google's
            else:
                try:
                    credentials, _ = google.auth.default(scopes=[_SCOPE])
                except DefaultCredentialsError:
                    raise StoreRejected(key, "no Google credentials on this machine") from None
            session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]  # google's
            # The caller tries again by itself: it knows which memory is still there.
            adapter = HTTPAdapter(pool_maxsize=self._connections, max_retries=0)
            session.mount("https://", adapter)
            session.mount("http://", adapter)
            # What the environment says of proxies and certificates is the same for all calls: looked up for
            # each of them, it costs a third of a part's CPU.
            found = session.merge_environment_settings(self._endpoint, {}, None, None, None)
            session.proxies, session.verify = found["proxies"], found["verify"]
            session.trust_env = False
            self._session = session
        return self._session


def of_no_token(key: str, error: GoogleAuthError) -> StoreError:
    """What it means that whoever gives out tokens gave none, or did not answer.

    google-auth calls only the former worth another try; but it has lost the latter while it renewed a token in
    mid-flush, and hides it behind another error where the machine's metadata service was asked.
    """
    told = "no access token to be had from Google"
    if answers.is_skewed(str(error)):
        return StoreUnavailable(key, f"{told}: {answers.CLOCK}")
    lost = error if isinstance(error, TransportError) else error.__cause__
    if isinstance(lost, TransportError) and len(lost.args) == 1:  # the others carry an answer
        silence = answers.of_silence(key, repr(lost))
        return type(silence)(key, f"{told}: {silence.reason}")
    kind = StoreUnavailable if getattr(error, "retryable", False) else StoreRejected
    return kind(key, told)


def of_answer(key: str, status: int, reason: str, text: str) -> Exception:
    """What a refusal means; only `answers` puts it into words."""
    if status == 404 and "bucket" in text.lower() and "object" not in text.lower():
        reason = "NoSuchBucket"
    if reason in ("rateLimitExceeded", "userRateLimitExceeded"):
        return answers.of_status(key, 429, reason)
    return answers.of_status(key, status, reason)


def _document(answer: requests.Response, key: str) -> Mapping[str, Any]:
    try:
        document = answer.json()
    except (ValueError, requests.RequestException):
        raise StoreUnavailable(key, "half an answer") from None
    if not isinstance(document, dict):
        raise StoreUnavailable(key, "not an answer of a store")
    return document


def _made(answer: requests.Response, key: str) -> Made:
    return _parsed(_document(answer, key), key)


def _parsed(document: Mapping[str, Any], key: str) -> Made:
    try:
        crc = document.get("crc32c")
        return Made(
            name=document["name"],
            nbytes=int(document.get("size", 0)),
            crc32c=int.from_bytes(base64.b64decode(crc), "big") if crc else None,
            created=datetime.fromisoformat(document["timeCreated"].replace("Z", "+00:00")),
        )
    except (KeyError, ValueError, TypeError, json.JSONDecodeError):
        raise StoreUnavailable(key, "not an answer of a store") from None
