"""Google Compute Engine: each key that may announce something is a source of its own.

All share one client. A hanging GET keeps a connection for itself, so whoever opens the
session allows for `CONNECTIONS`.
"""

import random
from collections.abc import Callable

import aiohttp

from evacd.clock import Clock
from evacd.notice import Source
from evacd.notice.gcp.key import FLAVOR, HOLD_SECONDS, ROOT, google_flavor
from evacd.notice.gcp.preempted import PREEMPTED, GcpSource, uptime
from evacd.notice.gcp.upcoming import POLL_SECONDS, UpcomingSource
from evacd.notice.gcp.words import MaintenanceSource, StopSource
from evacd.notice.longpoll import Pace
from evacd.notice.metadata import Limits, MetadataClient

__all__ = [
    "CONNECTIONS",
    "FLAVOR",
    "PREEMPTED",
    "ROOT",
    "URL",
    "GcpSource",
    "MaintenanceSource",
    "StopSource",
    "UpcomingSource",
    "gcp_client",
    "google_flavor",
    "sources",
]

URL = "http://169.254.169.254"
# One for each key that hangs, and one so that a plain read never waits for them.
CONNECTIONS = 5


def gcp_client(
    session: aiohttp.ClientSession,
    url: str = URL,
    *,
    limits: Limits | None = None,
    where: str = "metadata",
) -> MetadataClient:
    """A client at GCE's address.

    Raises:
        ConfigError: *url* is no ``http://ADDRESS[:PORT]``; says *where* it was set.
    """
    return MetadataClient(session, url, limits=limits, where=where)


def sources(
    client: MetadataClient,
    clock: Clock,
    *,
    gpu: bool,
    window_seconds: float = 30.0,
    stop_window_seconds: float = 30.0,
    trust_true_at_boot: bool = False,
    uptime: Callable[[], float] = uptime,
    upcoming_poll_seconds: float = POLL_SECONDS,
    hold_seconds: float = HOLD_SECONDS,
    boot: str = "",
    pace: Pace | None = None,
    jitter: Callable[[], float] = random.random,
) -> tuple[Source, ...]:
    """All that GCE may say, on one client.

    Args:
        gpu: This machine has one: its maintenance is announced an hour ahead, not a minute.
        window_seconds: From a preemption notice to the end: 30, or 120 where so made.
        stop_window_seconds: The VM's graceful shutdown `maxDuration`.
        trust_true_at_boot: Believe "preempted" at once even in the machine's first minute.
        uptime: Seconds since the machine booted.
        upcoming_poll_seconds: Between reads of the upcoming maintenance.
        hold_seconds: How long the service is asked to hold a hanging GET.
        boot: Kernel boot id.
        jitter: Uniform in [0, 1), for the back-off.
    """
    return (
        GcpSource(
            client,
            clock,
            window_seconds=window_seconds,
            hold_seconds=hold_seconds,
            boot=boot,
            trust_true_at_boot=trust_true_at_boot,
            uptime=uptime,
            pace=pace,
            jitter=jitter,
        ),
        MaintenanceSource(
            client, clock, gpu=gpu, hold_seconds=hold_seconds, boot=boot, pace=pace, jitter=jitter
        ),
        UpcomingSource(
            client,
            clock,
            poll_seconds=upcoming_poll_seconds,
            hold_seconds=hold_seconds,
            boot=boot,
            pace=pace,
            jitter=jitter,
        ),
        StopSource(
            client,
            clock,
            window_seconds=stop_window_seconds,
            hold_seconds=hold_seconds,
            boot=boot,
            pace=pace,
            jitter=jitter,
        ),
    )
