"""A notice that a user's own server tells: an event bus's relay, a scheduler's hook.

Unlike a cloud's metadata service it may have a name, a path and TLS, because whoever set it
vouches for it; all else is as strict: no proxy, no redirect, no page of HTML, little patience.
Over plain HTTP anyone on the way can empty this node.
"""

import random
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import urlsplit

import aiohttp

from evac.errors import ConfigError
from evacd.clock import Clock
from evacd.facts import Probe, Unknown
from evacd.notice.metadata import Answer, Failed, Limits, MetadataClient
from evacd.notice.polled import Polled
from evacd.notice.user.heard import Heard
from evacd.notice.user.schema import MOST_BYTES, printable
from evacd.notice.when import Sight, skew

LIMITS = Limits(connect=2.0, read=5.0)
_CURE = "is the server up, and does this machine reach it without a proxy?"


class HttpSource:
    """Asks one URL for ever."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        clock: Clock,
        *,
        period: float = 1.0,
        limits: Limits = LIMITS,
        name: str = "http",
        where: str = "notice.http",
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            session: From `open_session`.
            url: ``http://`` or ``https://``, with its path and query; no credentials.
            period: Seconds between two questions.
            name: The source's; notices carry it.
            where: The setting's place, for the error.
            jitter: Uniform in [0, 1), for the back-off.

        Raises:
            ConfigError: *url* is none.
        """
        self._client = MetadataClient(
            session, url, limits=limits, where=where, body_limit=MOST_BYTES, check_url=_checked
        )
        self._clock = clock
        self._name = name
        self._heard = Heard(name)
        self._polled = Polled(self._ask, period=period, clock=clock, jitter=jitter)

    @property
    def name(self) -> str:
        """See `Source`."""
        return self._name

    @property
    def patience(self) -> float:
        """See `evacd.notice.patience_of`."""
        return self._polled.patience

    async def probe(self) -> Probe:
        """See `Source`."""
        return await self._polled.probe()

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`."""
        await self._polled.watch(tell)

    async def _ask(self) -> tuple[Probe, ...]:
        answer = await self._client.ask("", headers={"Accept": "application/json"})
        if isinstance(answer, Failed):
            return (Unknown(self._name, answer.reason, _CURE),)
        if (failed := _ok(answer)) is not None:
            return (Unknown(self._name, failed.reason, failed.cure),)
        utc = self._clock.utc()
        ahead = skew(answer.headers.get("date"), utc=utc)
        return self._heard.hear(answer.body.encode(), Sight(self._clock.monotonic(), utc, ahead))


def _ok(answer: Answer) -> Failed | None:
    if answer.status == 200:
        return None
    if 300 <= answer.status < 400:
        to = printable(answer.headers.get("location", "nowhere"), 80)
        return Failed(f"HTTP {answer.status}, a redirect to {to}", "set the address it leads to")
    return Failed(f"HTTP {answer.status}", "no notice is 200 with an empty list")


def _checked(url: str, where: str) -> str:
    wrong = ConfigError(
        where, "url", f"http(s)://HOST[:PORT][/PATH] without credentials, not {url!r}"
    )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise wrong from error
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
        raise wrong
    if parts.fragment or not url.isprintable():
        raise wrong
    return url
