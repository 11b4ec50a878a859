"""Azure's Instance Metadata Service, as far as Scheduled Events need it.

Source: learn.microsoft.com/azure/virtual-machines/instance-metadata-service (required header,
no X-Forwarded-For, no proxy, 5 requests a second, 404, 410 and 5xx for a while during
updates) and learn.microsoft.com/azure/virtual-machines/linux/scheduled-events (the first call
enables the service and may take up to two minutes; StartRequests).
"""

import json

import aiohttp

from evacd.notice.azure.document import printable
from evacd.notice.metadata import Answer, Failed, Limits, MetadataClient

URL = "http://169.254.169.254"
EVENTS = "/metadata/scheduledevents"
NAME = "/metadata/instance/compute/name"
# SpotRebalanceRecommendation needs a later one, which no public page names yet.
EVENTS_VERSION = "2020-07-01"
INSTANCE_VERSION = "2021-02-01"
HEADERS = {"Metadata": "true"}
# Every machine of a placement group hears of all: in a mass preemption that is a long list.
BODY_LIMIT = 1024 * 1024
PATIENT = Limits(connect=1.0, read=5.0)
PROMPT = Limits(connect=1.0, read=2.0)

_UPDATES = "the service is being updated; asked again"
_CURES = {
    400: "this service does not know the api-version, or something in between drops headers",
    401: "something in between wants credentials; reach the metadata service directly",
    403: "a firewall or something in between refuses; reach the metadata service directly",
    404: _UPDATES + "; if it stays so for minutes, set azure.api_version to one that it knows, "
    "or find what answers in its place",
    410: _UPDATES + ", it takes up to 70 s",
    429: "this machine asks more than 5 times a second; poll less often, or find who else asks",
}


class Service:
    """The service of this machine; patient with it until it has answered once."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str = URL,
        *,
        api_version: str = EVENTS_VERSION,
        patient: Limits = PATIENT,
        prompt: Limits = PROMPT,
        where: str = "metadata",
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            api_version: Of Scheduled Events.
            patient: Until it has answered, and again after it did not.
            prompt: While it answers.
            where: The setting's place, for the error.

        Raises:
            ConfigError: *url* is no ``http://ADDRESS[:PORT]``.
        """
        self._patient = MetadataClient(
            session, url, limits=patient, where=where, body_limit=BODY_LIMIT
        )
        self._prompt = MetadataClient(
            session, url, limits=prompt, where=where, body_limit=BODY_LIMIT
        )
        self._version = {"api-version": api_version}
        self._answers = False

    async def events(self) -> Answer | Failed:
        """The document, status 200 always."""
        client = self._prompt if self._answers else self._patient
        answer = await client.ask(EVENTS, params=self._version, headers=HEADERS, check=_ok)
        self._answers = isinstance(answer, Answer)
        return answer

    async def name(self) -> str | Failed:
        """This machine's name, as the events have it."""
        answer = await self._prompt.ask(
            NAME,
            params={"api-version": INSTANCE_VERSION, "format": "text"},
            headers=HEADERS,
            check=_ok,
        )
        if isinstance(answer, Failed):
            return answer
        name = answer.body.strip()
        if not name or len(name) > 128 or not name.isprintable() or name[0] in '{["':
            return Failed(f"compute/name is {answer.body[:40]!r}, expected a machine's name")
        return name

    async def start(self, event_id: str) -> Failed | None:
        """Approve an event: it may start now. 200 also where it was approved before."""
        answer = await self._prompt.ask(
            EVENTS,
            method="POST",
            params=self._version,
            headers={**HEADERS, "Content-Type": "application/json"},
            body=json.dumps({"StartRequests": [{"EventId": event_id}]}).encode(),
            check=_ok,
        )
        return answer if isinstance(answer, Failed) else None


def _ok(answer: Answer) -> Failed | None:
    """Why an answer that is not 200 means nothing, and what can be done."""
    if answer.status == 200:
        return None
    if 300 <= answer.status < 400:
        to = printable(answer.headers.get("location", "nowhere"), 80)
        return Failed(
            f"HTTP {answer.status}, a redirect to {to}", "a proxy or captive portal answers"
        )
    cure = _CURES.get(answer.status, _UPDATES if answer.status >= 500 else "")
    return Failed(f"HTTP {answer.status}", cure)
