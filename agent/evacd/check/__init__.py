"""`evacd check`: would it work on this machine, today? Every answer names its cure.

Each check runs in a thread of its own with its own time limit, so that a hung mount or a
silent network costs one line and not the table.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from evac.store import is_durable
from evacd.check.etcd import check_etcd
from evacd.check.findings import Finding, Report, Verdict, as_json, table
from evacd.check.kubernetes import check_kubernetes, is_clustered
from evacd.check.machine import (
    check_daemon,
    check_files,
    check_huge_pages,
    check_memory,
    check_policy,
    check_sockets,
    check_spill,
    check_state,
)
from evacd.check.outside import check_cordon, check_departure
from evacd.check.peers import check_peer
from evacd.check.sources import check_sources
from evacd.check.stores import check_store
from evacd.clock import Clock
from evacd.config import Config, EtcdConfig, unread

__all__ = ["Check", "Finding", "Report", "Verdict", "as_json", "checks", "examine", "table"]

SECONDS = 5.0
STORE_SECONDS = 30.0
ETCD_SECONDS = 10.0
# To find out which cloud this is, and to ask all its sources.
SOURCES_SECONDS = 14.0
# A check that watches its own time gives the better message, so it gets to speak first.
_GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class Check:
    """One thing to look at.

    Attributes:
        seconds: After which it counts as failed.
    """

    name: str
    run: Callable[[], Finding | tuple[Finding, ...]]
    seconds: float = SECONDS


def checks(
    config: Config, clock: Clock, environ: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Check]:
    """All that apply, in the order of the table."""
    yield Check("configuration", partial(_configuration, config))
    if unread(environ):
        yield Check("variables", partial(_variables, environ))
    if not any(is_durable(url) for url in config.store.targets):
        yield Check("store", partial(_no_store, config.store.targets))
    for url in config.store.targets:
        durable = config.store.durable_anyway
        probe = partial(
            check_store, url, durable_anyway=durable, seconds=STORE_SECONDS, clock=clock
        )
        yield Check("store", partial(_awaited, probe), STORE_SECONDS + _GRACE_SECONDS)
    ask = partial(check_sources, config, clock)
    yield Check("sources", lambda: asyncio.run(ask()), SOURCES_SECONDS)
    yield Check("sockets", partial(check_sockets, config.sockets))
    yield Check("daemon", partial(check_daemon, config.sockets))
    yield Check("policy", partial(check_policy, config.policy))
    yield Check("memory", partial(check_memory, config.memory, config.peer, config.sockets))
    if config.memory.spill is not None:
        yield Check("spill", partial(check_spill, config.memory.spill))
    yield Check("peer", partial(check_peer, config))
    yield Check("open files", check_files)
    yield Check("huge pages", check_huge_pages)
    yield Check("state", partial(check_state, config.state))
    if clustered := is_clustered(config, environ):
        probe = partial(check_kubernetes, config, clock, environ)
        seconds = config.cordon.kubernetes_timeout_seconds + _GRACE_SECONDS
        yield Check("kubernetes", partial(_awaited, probe), seconds)
    if config.cordon.command or not clustered:
        yield Check("cordon", partial(check_cordon, config.cordon))
    yield Check("departure", partial(check_departure, config.departure))
    # Files without an endpoint may be wrong, too.
    for endpoint in config.etcd.endpoints or ([""] if config.etcd != EtcdConfig() else []):
        probe = partial(check_etcd, config, endpoint, seconds=ETCD_SECONDS)
        yield Check("etcd", partial(_awaited, probe), ETCD_SECONDS + _GRACE_SECONDS)


def examine(all_checks: Iterable[Check]) -> Report:
    """Run them one after the other, so that none slows another's figures."""
    findings: list[Finding] = []
    stuck = False
    for check in all_checks:
        pool = ThreadPoolExecutor(1, thread_name_prefix="check")
        future = pool.submit(check.run)
        try:
            found = future.result(timeout=check.seconds)
            findings += found if isinstance(found, tuple) else (found,)
        except TimeoutError:
            stuck = stuck or not future.done()
            detail = f"no answer within {check.seconds:g} s"
            cure = "a hung mount or network? stop what hangs, then check again"
            findings.append(Finding(check.name, Verdict.FAIL, detail, cure))
        finally:
            pool.shutdown(wait=False)
    return Report(tuple(findings), stuck)


def _awaited(check: Callable[[], Coroutine[None, None, Finding]]) -> Finding:
    return asyncio.run(check())


def _configuration(config: Config) -> Finding:
    places = [where.rpartition(":") for where in config.origins.values()]
    # A place in a file ends with its line; variables and flags have no colon.
    files = sorted({file for file, colon, _ in places if colon})
    given = f"{len(places)} settings given, all known"
    return Finding("configuration", Verdict.OK, "; ".join([*files, given]))


def _variables(environ: Mapping[str, str]) -> Finding:
    found = unread(environ)
    meant = ", ".join(one.meant for one in found if one.meant)
    return Finding(
        "variables",
        Verdict.WARN,
        f"set, but read by nobody: {', '.join(one.name for one in found)}",
        f"is {meant} meant?" if meant else "`evacd run --help` names all",
    )


def _no_store(targets: Collection[str]) -> Finding:
    cure = "give --store: a directory on this machine's own disk dies with it"
    what = "only peers' memory, which dies with them" if targets else "none configured"
    return Finding("store", Verdict.FAIL, f"{what}, so nothing could be saved", cure)
