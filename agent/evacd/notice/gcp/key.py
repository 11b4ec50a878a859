"""What all keys of GCE's metadata service share: how one is asked, and how one is watched.

Source: cloud.google.com/compute/docs/metadata/querying-metadata (the required header and its
echo; `wait_for_change`, `last_etag` and `timeout_sec` as query parameters, ignored as
headers; 503 at any time).
"""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn

from evacd.clock import Clock
from evacd.facts import Probe, Unknown
from evacd.notice.longpoll import LongPoll, Pace
from evacd.notice.metadata import Answer, Failed, MetadataClient
from evacd.notice.polled import ANSWER_MOST_SECONDS

ROOT = "/computeMetadata/v1/"
# A connection that died unseen hides a notice for this long and a little more; so it must be
# well below the shortest window of 30 s.
HOLD_SECONDS = 10.0
FLAVOR = {"Metadata-Flavor": "Google"}

_WORD = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_CURES = {
    401: "something in between wants credentials; reach the metadata service directly",
    403: "something in between adds X-Forwarded-For; reach the metadata service directly",
    404: "on GKE its own metadata server hides this key: run evacd with hostNetwork: true",
    429: "too many ask on this machine; asked again",
    503: "the VM is migrating or the service restarting; asked again",
}


class KeySource:
    """The shell of one key's source: asks, hands each answer to a judge, tells what it says."""

    def __init__(
        self,
        name: str,
        key: str,
        judge: Callable[[Answer | Failed], Probe],
        client: MetadataClient,
        clock: Clock,
        *,
        params: Mapping[str, str] | None = None,
        hold_seconds: float = HOLD_SECONDS,
        pace: Pace | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            key: Below `ROOT`.
            params: Query parameters of every request.
            hold_seconds: How long the service is asked to hold a hanging GET; whole
                seconds, at least 1.
            jitter: Uniform in [0, 1), for the back-off.
        """
        self.name = name
        self._path = ROOT + key
        self._client = client
        self._params = dict(params or {})
        self._hold = max(1, round(hold_seconds))
        self._loop = LongPoll(self.ask, judge, clock, pace=pace or Pace(), jitter=jitter)

    @property
    def patience(self) -> float:
        """See `evacd.notice.patience_of`."""
        return self._hold + ANSWER_MOST_SECONDS

    async def probe(self) -> Probe:
        """See `Source`."""
        return await self._loop.once()

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`."""
        await self._loop.watch(tell)

    async def ask(self, *, etag: str) -> Answer | Failed:
        """See `longpoll.Ask`."""
        if not etag:
            answer = await self._client.ask(
                self._path, headers=FLAVOR, params=self._params, check=google_flavor
            )
        else:
            hold = {
                "wait_for_change": "true",
                "last_etag": etag,
                "timeout_sec": str(self._hold),
            }
            answer = await self._client.ask(
                self._path,
                headers=FLAVOR,
                params=self._params | hold,
                check=google_flavor,
                hang_seconds=self._hold,
            )
        if isinstance(answer, Answer) and answer.status != 200:
            # Whether a key that is not there can be waited for is written nowhere.
            return replace(answer, etag="")
        return answer


def google_flavor(answer: Answer) -> Failed | None:
    """Only Google's service echoes its header; a captive proxy does not."""
    if answer.status == 200 and not from_google(answer):
        return Failed(
            "Metadata-Flavor: Google is missing from the answer", "is this a captive proxy?"
        )
    return None


def from_google(answer: Answer) -> bool:
    """The answer, whatever its status, is the metadata service's own."""
    return answer.headers.get("metadata-flavor") == "Google"


def valued(source: str, answer: Answer | Failed) -> Answer | Unknown:
    """*answer* where it carries a value; else why it does not."""
    if isinstance(answer, Failed):
        return Unknown(source, answer.reason, answer.cure)
    if answer.status == 200:
        return answer
    if 300 <= answer.status < 400:
        to = answer.headers.get("location", "nowhere")[:80]
        reason = f"HTTP {answer.status}, a redirect to {to}"
        return Unknown(source, reason, "a proxy or captive portal answers")
    if not from_google(answer):
        # Whether all of its errors echo the header is written nowhere: so both cures are told.
        cure = "; ".join(filter(None, ("is this a captive proxy?", _CURES.get(answer.status, ""))))
        return Unknown(source, f"HTTP {answer.status} without Metadata-Flavor", cure)
    return Unknown(source, f"HTTP {answer.status}", _CURES.get(answer.status, ""))


def is_word(text: str) -> bool:
    """*text* looks like one of Google's enumeration values, known to us or not."""
    return _WORD.fullmatch(text) is not None
