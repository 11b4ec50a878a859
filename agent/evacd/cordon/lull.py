"""Whether a cordon that an earlier daemon closed may be undone: nothing announces an end. Pure.

After a restart nobody knows which notice closed the node. So it stays closed until every
source has answered, none of them is unknown, and none holds what could become an order.
"""

from collections.abc import Iterable, Mapping

from evacd.facts import Confidence, Notice
from evacd.health import SourceHealth


def calm(
    expected: Iterable[str], health: Mapping[str, SourceHealth], notices: Iterable[Notice]
) -> bool:
    """Every source says that there is nothing.

    Args:
        expected: Names of all sources there are; with none there is nothing to wait for.
        health: How each is that has said anything.
        notices: All that were announced and not taken back. What only advises closes no node.
    """
    answered = all(name in health and health[name].answers for name in expected)
    return answered and all(notice.confidence is Confidence.ADVISORY for notice in notices)
