"""The one HTTP client of all clouds' metadata services.

A metadata service is one hop away and speaks plain HTTP. Whatever else answers in its
place, a proxy, a captive portal, another host's service, must not be taken for it: no
proxy environment, no redirects, no names to resolve, no HTML, small bodies. What the far
end does wrong comes back as `Failed`; nothing here raises for it.
"""

import asyncio
import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias
from urllib.parse import urlsplit

import aiohttp

from evac.errors import ConfigError

BODY_LIMIT = 64 * 1024
# Characters; no header that means anything here is longer.
HEADER_LIMIT = 200

_UNREACHABLE = (
    "is this a VM of that cloud? in a container use hostNetwork: true; "
    "a firewall or network policy may block the address"
)
_IN_BETWEEN = "a proxy or captive portal answers in place of the metadata service"


@dataclass(frozen=True)
class Answer:
    """What the service said, whatever its status.

    Attributes:
        body: Decoded from UTF-8; at most 64 KiB on the wire.
        etag: "" where there is none, or none that could be sent back.
        headers: By lower-case name; the last one where a name repeats. Their values are for
            logs, status and people as they are: printable, and no longer than `HEADER_LIMIT`.
    """

    status: int
    body: str
    etag: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Failed:
    """No answer that means anything.

    Attributes:
        reason: What happened, in a few words.
        cure: What a person can most likely do about it; may be empty.
        timed_out: The time ran out, and nothing else went wrong.
    """

    reason: str
    cure: str = ""
    timed_out: bool = False


@dataclass(frozen=True)
class Limits:
    """How long one request may take; all in seconds.

    Attributes:
        connect: To be connected.
        read: From there to the end of the answer.
        hang_slack: What a hanging GET may take beyond the time that it asked for.
    """

    connect: float = 1.0
    read: float = 2.0
    hang_slack: float = 2.0


Check: TypeAlias = Callable[[Answer], Failed | None]


def open_session(*, connections: int = 4) -> aiohttp.ClientSession:
    """The only kind of session that a `MetadataClient` takes; close it after use.

    Args:
        connections: At most so many at once: some services limit them per machine.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        # Identity only: what a service sends is small, and a bomb stays as small as it came.
        headers={"Accept-Encoding": "identity", "User-Agent": "evacd"},
        auto_decompress=False,
        # Never the environment's proxy: that would be the proxy host's metadata.
        trust_env=False,
    )


def address_only(url: str, where: str) -> str:
    """*url* without its last slash, if it names an address and nothing more.

    Raises:
        ConfigError: It does not; says *where* it was set.
    """
    wrong = ConfigError(
        where,
        "url",
        f"http://ADDRESS[:PORT] with an IP address or localhost, not {url!r}: "
        "a name may be resolved to another host's metadata",
    )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise wrong from error
    extra = parts.username, parts.password, parts.query, parts.fragment, parts.path.strip("/")
    if parts.scheme != "http" or not host or any(extra):
        raise wrong
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError as error:
            raise wrong from error
    return url.rstrip("/")


class MetadataClient:
    """Asks one metadata service; made for one source, from one `open_session`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        limits: Limits | None = None,
        where: str = "metadata",
        body_limit: int = BODY_LIMIT,
        check_url: Callable[[str, str], str] = address_only,
    ) -> None:
        """Raise `ConfigError` where *url* is no ``http://ADDRESS[:PORT]``.

        Args:
            where: The setting's place, for the error: a file and line, a flag.
            body_limit: Bytes; a longer answer is `Failed`.
            check_url: What *url* may be, for services that no cloud runs.
        """
        if session.trust_env:
            raise ValueError("a metadata session never trusts the proxy environment")
        self.url = check_url(url, where)
        self._session = session
        self._limits = limits or Limits()
        self._body_limit = body_limit

    async def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        check: Check | None = None,
        hang_seconds: float | None = None,
    ) -> Answer | Failed:
        """One request, one answer; ends within the time-outs, whatever the far end does.

        Args:
            path: Begins with a slash.
            params: Become query parameters.
            check: Says of an answer why it cannot be the service's own; None where it can.
            hang_seconds: How long the service was asked to hold the answer back; None for a
                plain request.
        """
        connect, read = self._limits.connect, self._limits.read
        if hang_seconds is not None:
            read = hang_seconds + self._limits.hang_slack
        try:
            async with self._session.request(
                method,
                self.url + path,
                params=params,
                headers=headers,
                data=body,
                allow_redirects=False,
                # All of it has one limit, so that a body in drips cannot go on for ever.
                timeout=aiohttp.ClientTimeout(
                    total=connect + read, sock_connect=connect, sock_read=read
                ),
            ) as response:
                raw = await _capped(response.content, self._body_limit)
                if raw is None:
                    response.close()
                    return Failed(f"the body is over {self._body_limit} bytes", _IN_BETWEEN)
                answer = _answer(response, raw)
        except aiohttp.ConnectionTimeoutError:
            return Failed(f"no connection within {connect:g} s", _UNREACHABLE, timed_out=True)
        except TimeoutError:
            return Failed(
                f"no answer within {read:g} s", "it may be busy; asked again", timed_out=True
            )
        except aiohttp.ClientSSLError as error:
            return Failed(
                f"no TLS connection: {_shown(str(error))}", "is its certificate trusted here?"
            )
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            why = os.strerror(number) if number and number > 0 else str(error.os_error)
            return Failed(f"no connection: {_shown(why)}", _UNREACHABLE)
        except UnicodeDecodeError:
            return Failed("the body is not text", _IN_BETWEEN)
        except aiohttp.ClientResponseError:
            return Failed("the answer is not HTTP", _IN_BETWEEN)
        except aiohttp.ClientPayloadError:
            return Failed("the body is cut short", "it may be restarting; asked again")
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError) as error:
            return Failed(f"the connection broke: {type(error).__name__}", _UNREACHABLE)
        if answer.status == 200 and _is_html(answer):
            return Failed("the answer is an HTML page", _IN_BETWEEN)
        return (check(answer) if check else None) or answer


async def _capped(content: aiohttp.StreamReader, limit: int) -> bytes | None:
    """The whole body, or None where it is over the limit."""
    raw = bytearray()
    async for chunk in content.iter_any():
        raw += chunk
        if len(raw) > limit:
            return None
    return bytes(raw)


def _answer(response: aiohttp.ClientResponse, raw: bytes) -> Answer:
    etag = response.headers.get("ETag", "")
    return Answer(
        status=response.status,
        # An error's page is for people; only what is taken as a value has to be text.
        body=raw.decode("utf-8", "strict" if response.status == 200 else "replace"),
        etag=etag if etag.isascii() and etag.isprintable() else "",
        headers=MappingProxyType({k.lower(): _shown(v) for k, v in response.headers.items()}),
    )


def _shown(value: str) -> str:
    """A header's value for people: raw bytes come as lone surrogates, which nothing can write."""
    return "".join(c if c.isprintable() else "?" for c in value[:HEADER_LIMIT])


def _is_html(answer: Answer) -> bool:
    kind = answer.headers.get("content-type", "").strip().lower()
    start = answer.body.lstrip("\ufeff \t\r\n")[:64].lower()
    return kind.startswith(("text/html", "application/xhtml")) or start.startswith(
        ("<!doctype", "<html", "<head", "<body", "<!--")
    )
