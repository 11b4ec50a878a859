"""A mark on the node that stands, told sixty times."""

from collections.abc import Callable

from evacd.facts import Noticed, Probe
from evacd.notice.node import NodeSource
from tests.agent.notice.hearing import MovedClock
from tests.agent.notice.node.api_server import ApiServer
from tests.agent.notice.node.test_source import label


async def test_a_mark_that_stands_is_one_notice_sixty_times(
    source: NodeSource,
    cluster: ApiServer,
    clock: MovedClock,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("matrix", ("node", "x60"))
    label(cluster.nodes["gpu-7"])
    told: set[Probe] = set()
    for _ in range(60):
        told.add(await source.probe())
        clock.now += 1.0

    (probe,) = told
    assert isinstance(probe, Noticed)
