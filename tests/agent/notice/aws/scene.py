"""A simulated EC2, the sources that listen to it, and what an order machine makes of them."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import aiohttp

from evacd.facts import Noticed, Probe, Unknown
from evacd.notice import Source
from evacd.notice.aws import aws_client, sources
from evacd.notice.aws.token import Imds
from evacd.notice.metadata import Limits
from evacd.notice.simulate.aws import AwsMetadata
from evacd.notice.simulate.faults import Faults
from evacd.order import Machine, Transition

# Where silence is the point, and nothing else is asked.
QUICK = Limits(connect=0.2, read=0.3)
PATIENT = Limits(connect=10.0, read=10.0)
NAMES = ("aws/spot", "aws/rebalance", "aws/maintenance", "aws/asg")
KEYS = {
    "aws/spot": "spot/instance-action",
    "aws/rebalance": "events/recommendations/rebalance",
    "aws/maintenance": "events/maintenance/scheduled",
    "aws/asg": "autoscaling/target-lifecycle-state",
}
ANNOUNCE = {
    "aws/spot": "preempt",
    "aws/rebalance": "rebalance",
    "aws/maintenance": "maintenance",
    "aws/asg": "asg-terminate",
}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOKEN = "PUT /latest/api/token"


@dataclass
class Clocks:
    """Two clocks that stand where the test put them.

    Attributes:
        now: Monotonic seconds; the wall clock goes along.
        ahead: Seconds that the wall clock was stepped.
    """

    now: float = 1000.0
    ahead: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return NOON + timedelta(seconds=self.now - 1000.0 + self.ahead)


@dataclass
class Scene:
    """One node and its metadata service.

    Attributes:
        clock: The node's.
        theirs: The service's.
        faults: Of the service; empty at first.
    """

    session: aiohttp.ClientSession
    url: str
    ec2: AwsMetadata
    clock: Clocks
    theirs: Clocks
    faults: Faults = field(default_factory=Faults)

    def sources(self, *, limits: Limits = PATIENT, ttl_seconds: int = 21_600) -> dict[str, Source]:
        client = aws_client(self.session, self.url, limits=limits)
        made = sources(
            client,
            self.clock,
            boot="boot-1",
            period=0.01,
            ttl_seconds=ttl_seconds,
            jitter=lambda: 0.0,
        )
        return {source.name: source for source in made}

    def imds(self, *, limits: Limits = PATIENT, ttl_seconds: int = 21_600) -> Imds:
        client = aws_client(self.session, self.url, limits=limits)
        return Imds(client, self.clock, ttl_seconds=ttl_seconds)

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.theirs.now += seconds

    def asked(self) -> list[str]:
        """What the service was asked since the last time, in order."""
        asked = [
            f"{each.method} {each.target.removeprefix('/latest/meta-data/')}"
            for each in self.ec2.requests
        ]
        self.ec2.requests.clear()
        return asked


def unknown(probe: Probe) -> Unknown:
    """*probe*, which has to be one."""
    assert isinstance(probe, Unknown), probe
    return probe


def noticed(probe: Probe) -> Noticed:
    """*probe*, which has to be one."""
    assert isinstance(probe, Noticed), probe
    return probe


def transitions(probes: list[Probe], *, now: float = 1000.0) -> list[Transition]:
    """What an order machine makes of them."""
    machine = Machine(lambda: "order-1")
    return [transition for probe in probes for transition in machine.feed(probe, now=now)]
