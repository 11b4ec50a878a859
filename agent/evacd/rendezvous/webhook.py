"""The `webhook` departure: one JSON POST to whoever the operator names.

The body is `document` of the departure; two headers go with it. ``Idempotency-Key`` is the
same for all tries of one announcement and of no other, so that a receiver can drop repeats;
``sequence`` rises from one announcement of a boot of a node to the next, so that it can drop
what comes late. Where a secret is configured, ``Evac-Signature: sha256=<hex>`` is the HMAC of the
body's bytes (RFC 2104).

The URL may carry a token in its path, so that only its origin shows in logs and reasons.
"""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from evac.errors import ConfigError
from evacd.clock import Clock
from evacd.rendezvous import Departure

SCHEMA = 1
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 2.0
# A try that hangs leaves time for another, over another connection.
_TRY_SHARE = 0.4
_MOST_ANSWER = 200


class WebhookAnnouncer:
    """Posts departures; connection errors, 429 and 5xx are tried again while time is left."""

    name = "webhook"

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        *,
        timeout_seconds: float,
        clock: Clock,
        secret: bytes | None = None,
    ) -> None:
        """Say where to post.

        Args:
            session: Must not take proxies from the environment: a proxy is one more thing
                that the end of a machine can break.
            timeout_seconds: Of one announcement, all its tries included.
            secret: Key of the signature; None for no signature.

        Raises:
            ConfigError: The URL is not one that can be posted to.
            ValueError: The session trusts the environment, or there is no time limit.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError("webhook", "url", "a URL: https://host/path") from error
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError("webhook", "url", "a URL: https://host/path")
        if session.trust_env:
            raise ValueError("the session takes proxies from the environment")
        if not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds is {timeout_seconds}, expected more than 0")
        self._url = url
        self._origin = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
        self._session = session
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._secret = secret

    def __repr__(self) -> str:
        return f"WebhookAnnouncer({self._origin!r})"

    def concerns(self, departure: Departure) -> bool:
        """See `Announcer`."""
        return True

    async def announce(self, departure: Departure) -> str | None:
        """See `Announcer`."""
        body = json.dumps(document(departure)).encode()
        key = idempotency_key(departure)
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        if self._secret is not None:
            signature = hmac.new(self._secret, body, hashlib.sha256).hexdigest()
            headers["Evac-Signature"] = f"sha256={signature}"
        deadline = self._clock.monotonic() + self._timeout_seconds
        tries, wrong, pause = 0, "no answer", _FIRST_PAUSE_SECONDS
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    tries += 1
                    answer = await self._post(body, headers)
                    if answer is None or not answer.again:
                        return None if answer is None else f"{self._origin}: {answer.text}"
                    wrong = answer.text
                    # Spread by the key: nodes that leave together do not come back together.
                    await asyncio.sleep(pause * (0.75 + int(key[:4], 16) / 0x20000))
                    pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        except TimeoutError:
            tried = f"{tries} tries" if tries != 1 else "1 try"
            return f"{self._origin}: {wrong}; {tried} in {self._timeout_seconds:g} s"

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> "_Failure | None":
        limit = self._timeout_seconds * _TRY_SHARE
        try:
            async with (
                asyncio.timeout(limit),
                self._session.post(
                    self._url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    # Ours is the only time limit.
                    timeout=aiohttp.ClientTimeout(total=None),
                ) as response,
            ):
                if response.status < 300:
                    return None
                if response.status < 400:
                    return _Failure(f"redirected ({response.status}), which is not followed")
                said = _line(await response.content.read(_MOST_ANSWER))
                text = f"answered {response.status}" + (f": {said}" if said else "")
                return _Failure(text, again=response.status == 429 or response.status >= 500)
        except TimeoutError:
            return _Failure(f"no answer within {limit:g} s", again=True)
        except (aiohttp.InvalidURL, ValueError) as error:
            # An address that only the HTTP client knows to be impossible.
            return _Failure(type(error).__name__)
        except (aiohttp.ClientConnectionError, OSError) as error:
            return _Failure(_line(str(error).encode()) or type(error).__name__, again=True)
        except aiohttp.ClientError as error:
            # No more than its name: the text of these may hold the whole URL.
            return _Failure(type(error).__name__, again=True)


@dataclass(frozen=True)
class _Failure:
    """One try that did not succeed."""

    text: str
    again: bool = False


def document(departure: Departure) -> dict[str, Any]:
    """What is posted.

    ``word`` is ``leaving``, ``written`` (this node's share), ``durable`` (the whole
    generation), ``lost`` or ``staying``; ``job`` is "" for the whole node; ``generation`` is
    null or holds ``step`` and ``incarnation``; ``store`` is where it goes or lies;
    ``seconds_left`` was true when the departure was made.
    """
    generation = departure.generation
    return {
        "schema": SCHEMA,
        "sequence": departure.sequence,
        "word": departure.word.value,
        "node": departure.node,
        "boot": departure.boot,
        "order": departure.order,
        "seconds_left": round(departure.seconds_left, 3),
        "job": departure.job,
        "generation": None if generation is None else asdict(generation),
        "store": departure.store,
        "reason": departure.reason,
    }


def idempotency_key(departure: Departure) -> str:
    """The same for all tries of one announcement; hex, so that no name can break the header."""
    generation = departure.generation
    parts = (
        departure.node,
        departure.boot,
        departure.order,
        departure.word.value,
        departure.job,
        generation.directory if generation else "",
        str(departure.sequence),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _line(answer: bytes) -> str:
    """The first line, printable and short."""
    text = answer[:_MOST_ANSWER].decode(errors="replace").strip().split("\n")[0]
    return "".join(c if c.isprintable() else "?" for c in text.strip())
