"""Whether the API server would let this node be closed: all of it is tried as a dry run."""

from asyncio import TaskGroup
from collections.abc import Mapping

import aiohttp

from evac.errors import ConfigError
from evacd.check.findings import Finding, Verdict
from evacd.clock import Clock
from evacd.config import Config
from evacd.cordon.configured import kubernetes

_NAME = "kubernetes"


def is_clustered(config: Config, environ: Mapping[str, str]) -> bool:
    """There is a cluster to look at, or somebody says so."""
    wanted = config.cordon.kubernetes
    return wanted in ("on", "report-only") or (
        wanted == "auto" and bool(environ.get("KUBERNETES_SERVICE_HOST"))
    )


async def check_kubernetes(config: Config, clock: Clock, environ: Mapping[str, str]) -> Finding:
    """The node is there, and evacd may cordon it, taint it and tell why; nothing is changed."""
    async with aiohttp.ClientSession(trust_env=False) as session:
        try:
            found = kubernetes(config, session, clock, boot="check", environ=environ)
        except ConfigError as error:
            return Finding(_NAME, Verdict.FAIL, str(error), "correct it")
        if found is None:
            detail = f"no token in {config.node.account}: this node is not cordoned"
            return Finding(_NAME, Verdict.WARN, detail, "run it with a service account")
        async with TaskGroup() as tasks:
            tried = [tasks.create_task(one.rehearse()) for one in (found.cordon, found.telling)]
        if wrong := "; ".join(why for each in tried if (why := each.result()) is not None):
            return Finding(_NAME, Verdict.FAIL, wrong, "see the rights in container/README.md")
    if found.cordon.others:
        detail = f"it is closed by {', '.join(found.cordon.others)}, too, by the marks on it"
        cure = 'set cordon.kubernetes = "report-only" where another handler owns the node'
        return Finding(_NAME, Verdict.WARN, detail, cure)
    how = "closed" if found.cordon.closes else "only told of"
    return Finding(_NAME, Verdict.OK, f"this node may be {how} when it leaves")
