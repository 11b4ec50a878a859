"""EC2's instance metadata service, version 2: one token, held for all keys.

Never version 1: it is not tried when a token cannot be had, because every poll of a node behind
a short hop limit would then wait for a time-out, and because whoever can make us ask without a
token can answer in the service's place.

Sources: docs.aws.amazon.com/AWSEC2/latest/UserGuide, "Retrieve instance metadata" (the PUT and
its TTL header, 400/401/403/404) and "Configure the instance metadata options" (the hop limit
of the PUT's answer; default 1). Hop limits show as time-outs of the PUT alone, while a GET is
answered; overlay networks need 3: kubernetes-sigs/aws-ebs-csi-driver#2966.
"""

import asyncio
from dataclasses import dataclass

import aiohttp

from evacd.clock import Clock
from evacd.notice.metadata import Answer, Failed, Limits, MetadataClient

URL = "http://169.254.169.254"
# Nitro only; to be enabled on the instance, and on its subnet.
URL_IPV6 = "http://[fd00:ec2::254]"
TOKEN_PATH = "/latest/api/token"
KEYS_PATH = "/latest/meta-data/"
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aws-ec2-metadata-token"
TTL_SECONDS = 21_600
# That the hop limit is too short is found out with two time-outs; so not at every poll.
DECIDED_SECONDS = 30.0
# Between attempts to replace a token that is still good.
EARLY_AGAIN_SECONDS = 5.0

HOP_LIMIT = "hop limit: run with hostNetwork or raise the hop limit to 2 or more"
_IMDS_OFF = (
    "switch IMDS on (aws ec2 modify-instance-metadata-options --http-endpoint enabled), "
    "or take away the proxy that adds X-Forwarded-For"
)
_CURES = {
    400: "is this EC2's metadata service?",
    401: "its tokens are not accepted; does something in between answer for another machine?",
    403: _IMDS_OFF,
    404: "is this EC2's metadata service?",
    405: "is this EC2's metadata service?",
    429: "too many ask on this machine; asked again",
    503: "the service is busy or restarting; asked again",
}


@dataclass(frozen=True)
class _Token:
    """Good until *ends*, to be replaced from *renew* on; monotonic seconds."""

    text: str
    renew: float
    ends: float


@dataclass(frozen=True)
class _Decided:
    """Why no token can be had, believed until then."""

    failed: Failed
    until: float


class Imds:
    """Asks for keys, with the one token; what goes wrong comes back as `Failed`.

    All sources of a node share one, so that a token that ran out is replaced once.
    """

    def __init__(
        self, client: MetadataClient, clock: Clock, *, ttl_seconds: int = TTL_SECONDS
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            ttl_seconds: How long a token shall live, 1 to 21600.

        Raises:
            ValueError: *ttl_seconds* is out of range.
        """
        if not 1 <= ttl_seconds <= TTL_SECONDS:
            raise ValueError(f"a token lives 1 to {TTL_SECONDS} s, not {ttl_seconds}")
        self._client = client
        self._clock = clock
        self._ttl = ttl_seconds
        self._token: _Token | None = None
        self._decided: _Decided | None = None
        self._puts = 0
        self._last_put: _Token | Failed | None = None
        self._turn = asyncio.Lock()

    async def get(self, key: str) -> Answer | Failed:
        """One key below ``meta-data/``: an answer of 200 or 404, all else is `Failed`."""
        token = await self._usable()
        if isinstance(token, Failed):
            return token
        answer = await self._ask(key, token)
        if isinstance(answer, Answer) and answer.status == 401:
            token = await self._usable(instead_of=token)
            if isinstance(token, Failed):
                return token
            answer = await self._ask(key, token)
        if isinstance(answer, Answer) and answer.status not in (200, 404):
            return _failed(answer)
        return answer

    async def _ask(self, key: str, token: _Token) -> Answer | Failed:
        # Made anew for each request: a header that is *added* goes out twice after a 401,
        # the stale one first (aws-node-termination-handler#668).
        return await self._client.ask(KEYS_PATH + key, headers={TOKEN_HEADER: token.text})

    async def _usable(self, *, instead_of: _Token | None = None) -> _Token | Failed:
        """A token that can be sent now.

        Args:
            instead_of: The one that was just refused.
        """
        held = self._token
        if held is not None and instead_of is not None and held.text == instead_of.text:
            held = self._token = None
        now = self._clock.monotonic()
        if held is not None and now < held.renew:
            return held
        if held is not None and now < held.ends and self._turn.locked():
            return held  # another one is replacing it, and it is good enough until then
        puts = self._puts
        async with self._turn:
            if self._puts != puts and self._last_put is not None:
                return self._last_put  # came while we waited
            got = await self._put()
            self._last_put, self._puts = got, self._puts + 1
            if isinstance(got, Failed) and held is not None and self._token is held:
                return self._kept_on(held, got)
            if isinstance(got, _Token):
                self._token = got
            return got

    def _kept_on(self, held: _Token, failed: Failed) -> _Token | Failed:
        """The old token for as long as it lives: no new one is no reason to be deaf."""
        now = self._clock.monotonic()
        if now >= held.ends:
            return failed
        self._token = _Token(held.text, min(now + EARLY_AGAIN_SECONDS, held.ends), held.ends)
        return self._token

    async def _put(self) -> _Token | Failed:
        now = self._clock.monotonic()
        if self._decided is not None and now < self._decided.until:
            return self._decided.failed
        answer = await self._client.ask(
            TOKEN_PATH, method="PUT", headers={TTL_HEADER: str(self._ttl)}
        )
        if isinstance(answer, Failed):
            return await self._why(answer) if answer.timed_out else answer
        if answer.status != 200:
            return _failed(answer, f"no token: HTTP {answer.status}")
        text = answer.body.strip()
        if not (
            0 < len(text) <= 1024 and text.isascii() and text.isprintable() and " " not in text
        ):
            return Failed("no token: the answer is no token", "is this EC2's metadata service?")
        ttl = _ttl(answer.headers.get(TTL_HEADER.lower(), ""), self._ttl)
        # Counted from before the request: the service's count began later.
        return _Token(text, renew=now + ttl / 2, ends=now + ttl)

    async def _why(self, timed_out: Failed) -> Failed:
        """Tell a hop limit, which swallows the PUT's answer alone, from a silent service.

        What the GET without a token says is never used; that it is answered is enough.
        """
        plain = await self._client.ask(KEYS_PATH)
        if isinstance(plain, Failed) or plain.status not in (200, 401):
            return timed_out
        failed = Failed("no token: the PUT times out while a GET is answered", HOP_LIMIT)
        if self._last_put is None or isinstance(self._last_put, Failed):
            self._decided = _Decided(failed, self._clock.monotonic() + DECIDED_SECONDS)
        return failed


def aws_client(
    session: aiohttp.ClientSession,
    url: str = URL,
    *,
    limits: Limits | None = None,
    where: str = "metadata",
) -> MetadataClient:
    """A client at EC2's address; `URL_IPV6` is the other one.

    Raises:
        ConfigError: *url* is no ``http://ADDRESS[:PORT]``; says *where* it was set.
    """
    return MetadataClient(session, url, limits=limits, where=where)


def _failed(answer: Answer, reason: str = "") -> Failed:
    if 300 <= answer.status < 400:
        to = answer.headers.get("location", "nowhere")[:80]
        return Failed(
            f"HTTP {answer.status}, a redirect to {to}", "a proxy or captive portal answers"
        )
    return Failed(reason or f"HTTP {answer.status}", _CURES.get(answer.status, ""))


def _ttl(told: str, asked: int) -> float:
    """The shorter of what was asked for and what was given."""
    if told.isascii() and told.isdigit() and len(told) < 9:
        return float(min(asked, max(1, int(told))))
    return float(asked)
