"""Microsoft Azure: Scheduled Events, of which a spot eviction is one.

Not verified on a real cloud: the api-version that carries `SpotRebalanceRecommendation`
(a setting; any unknown type or status is told as an advisory), and that a warm-up looks as
documented.
"""

import random
from collections.abc import Callable, Collection

import aiohttp

from evacd.clock import Clock
from evacd.notice.azure.service import EVENTS_VERSION, PATIENT, PROMPT, URL, Service
from evacd.notice.azure.source import AzureSource
from evacd.notice.metadata import Limits

__all__ = ["EVENTS_VERSION", "URL", "AzureSource", "sources"]


def sources(
    session: aiohttp.ClientSession,
    clock: Clock,
    *,
    url: str = URL,
    where: str = "metadata",
    api_version: str = EVENTS_VERSION,
    machine: str = "",
    preempt_assume_seconds: float = 10.0,
    acknowledge: bool = False,
    over: Collection[str] = (),
    period: float = 1.0,
    patient: Limits = PATIENT,
    prompt: Limits = PROMPT,
    jitter: Callable[[], float] = random.random,
) -> tuple[AzureSource]:
    """All that Azure may announce; see `AzureSource` and `Service` for the arguments.

    Raises:
        ConfigError: *url* is no ``http://ADDRESS[:PORT]``; says *where* it was set.
        ValueError: *period* is not positive.
    """
    service = Service(
        session, url, api_version=api_version, patient=patient, prompt=prompt, where=where
    )
    source = AzureSource(
        service,
        clock,
        machine=machine,
        preempt_assume_seconds=preempt_assume_seconds,
        acknowledge=acknowledge,
        over=over,
        period=period,
        jitter=jitter,
    )
    return (source,)
