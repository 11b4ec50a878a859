"""The own Kubernetes node, watched for the marks by which a platform says that it goes."""

from collections.abc import Iterable

import aiohttp

from evacd.clock import Clock
from evacd.kube import Access, Limits, in_cluster
from evacd.notice.node.api import NodeApi
from evacd.notice.node.defaults import DEFAULT_RULES
from evacd.notice.node.rules import Match, Rule, Where, read
from evacd.notice.node.source import NodeSource, rules_with

__all__ = [
    "DEFAULT_RULES",
    "Access",
    "Limits",
    "Match",
    "NodeApi",
    "NodeSource",
    "Rule",
    "Where",
    "in_cluster",
    "read",
    "sources",
]


def sources(
    session: aiohttp.ClientSession,
    clock: Clock,
    access: Access,
    *,
    node: str,
    rules: Iterable[Rule] = (),
) -> tuple[NodeSource, ...]:
    """The one source of this node's marks.

    Args:
        session: From `evacd.notice.metadata.open_session`.
        access: From `in_cluster`, or a site's own.
        node: Its name as Kubernetes has it.
        rules: A site's own; they go before the known ones.
    """
    return (NodeSource(NodeApi(session, access, node), clock, rules=rules_with(rules)),)
