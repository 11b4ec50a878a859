"""Amazon EC2, by instance metadata version 2: one source per key that may announce something.

Not in instance metadata, and so not heard here: the end of a Capacity Block (configure a
`calendar`), and the interruption of an interruptible capacity reservation, which Amazon
documents for EventBridge only (relay it to a file or HTTP source).
"""

import random
from collections.abc import Callable, Collection, Mapping
from functools import partial

from evacd.clock import Clock
from evacd.notice import Source
from evacd.notice.aws import asg, maintenance, rebalance, spot
from evacd.notice.aws.asg import HOOK_SECONDS
from evacd.notice.aws.key import PERIOD_SECONDS, KeySource
from evacd.notice.aws.maintenance import POLICIES, Policy
from evacd.notice.aws.token import TTL_SECONDS, URL, URL_IPV6, Imds, aws_client
from evacd.notice.metadata import MetadataClient

__all__ = [
    "CONNECTIONS",
    "HOOK_SECONDS",
    "POLICIES",
    "URL",
    "URL_IPV6",
    "Imds",
    "KeySource",
    "Policy",
    "aws_client",
    "sources",
]

# One for each key, so that none waits for another's answer. They are kept open.
CONNECTIONS = 4


def sources(
    client: MetadataClient,
    clock: Clock,
    *,
    boot: str = "",
    period: float = PERIOD_SECONDS,
    hook_seconds: float = HOOK_SECONDS,
    policies: Mapping[str, Policy] = POLICIES,
    ignored: Collection[str] = (),
    ttl_seconds: int = TTL_SECONDS,
    jitter: Callable[[], float] = random.random,
) -> tuple[Source, ...]:
    """All of EC2's sources, with one token between them.

    Args:
        client: Of `aws_client`; its session allows for `CONNECTIONS`.
        boot: Kernel boot id: tells this boot's notices from those before a restart.
        period: Seconds between two questions for the same key.
        hook_seconds: How long the Auto Scaling group's terminating hook holds the instance.
        policies: By the code of a scheduled event; what is missing only advises.
        ignored: Event ids (or notice ids) of scheduled events that this machine has been
            through, though they may still be called active.
        ttl_seconds: Of the token, 1 to 21600.
        jitter: Uniform in [0, 1), for the back-off.

    Raises:
        ValueError: *period* or *ttl_seconds* is out of range.
    """
    imds = Imds(client, clock, ttl_seconds=ttl_seconds)
    reads = (
        (spot.NAME, spot.KEY, partial(spot.read_action, boot=boot)),
        (rebalance.NAME, rebalance.KEY, partial(rebalance.read_rebalance, boot=boot)),
        (
            maintenance.NAME,
            maintenance.KEY,
            partial(maintenance.read_events, policies=policies, ignored=ignored),
        ),
        (asg.NAME, asg.KEY, partial(asg.read_state, boot=boot, hook_seconds=hook_seconds)),
    )
    return tuple(
        KeySource(name, key, read, imds, clock, period=period, jitter=jitter)
        for name, key, read in reads
    )
