"""From settings to sources. A cloud's code is imported where that cloud is heard."""

import os
from asyncio import to_thread
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from evacd.clock import Clock
from evacd.config import Config, NodeRule
from evacd.facts import Confidence
from evacd.kube.access import node_name
from evacd.listening.absent import AbsentSource
from evacd.listening.find import url_of
from evacd.notice import Source
from evacd.notice.metadata import open_session

if TYPE_CHECKING:
    from evacd.notice.node import Rule

_WHERE = "notice.metadata_url"
_BUS = Path("/run/dbus/system_bus_socket")


async def independent(
    config: Config,
    clock: Clock,
    opened: AsyncExitStack,
    *,
    boot: str = "",
    environ: Mapping[str, str] = os.environ,
) -> tuple[Source, ...]:
    """The sources that need no cloud: shutdown, Kubernetes node, calendar, the user's own.

    Args:
        opened: Closes what they hold open.
        boot: Kernel boot id.

    Raises:
        ConfigError: A URL is none.
    """
    return (
        *await _shutdown(config, clock, environ),
        *await _node(config, clock, opened, environ),
        *_calendar(config, clock, boot),
        *await _user(config, clock, opened),
    )


async def of_cloud(
    config: Config,
    cloud: str,
    clock: Clock,
    opened: AsyncExitStack,
    *,
    boot: str = "",
    over: Collection[str] = (),
) -> tuple[Source, ...]:
    """All that *cloud* may announce; nothing where it is "".

    Args:
        opened: Closes what they hold open.
        boot: Kernel boot id.
        over: Ids of events that this machine has been through before it booted: a cloud may
            list them for days more.

    Raises:
        ConfigError: The metadata service's address is none.
    """
    match cloud:
        case "aws":
            return await _aws(config, clock, opened, boot, over)
        case "gcp":
            return await _gcp(config, clock, opened, boot)
        case "azure":
            return await _azure(config, clock, opened, over)
        case _:
            return ()


# --- clouds -----------------------------------------------------------------------------


async def _aws(
    config: Config, clock: Clock, opened: AsyncExitStack, boot: str, over: Collection[str]
) -> tuple[Source, ...]:
    from evacd.notice import aws

    session = await opened.enter_async_context(open_session(connections=aws.CONNECTIONS))
    client = aws.aws_client(session, url_of(config, "aws"), where=_WHERE)
    sources = aws.sources(
        client,
        clock,
        boot=boot,
        period=config.notice.poll_seconds,
        hook_seconds=config.aws.hook_seconds,
        policies={
            **aws.POLICIES,
            **{code: aws.Policy(policy) for code, policy in config.aws.policies},
        },
        ignored=(*config.aws.ignored_events, *over),
    )
    return tuple(each for each in sources if config.aws.rebalance or each.name != "aws/rebalance")


async def _gcp(
    config: Config, clock: Clock, opened: AsyncExitStack, boot: str
) -> tuple[Source, ...]:
    from evacd.notice import gcp

    session = await opened.enter_async_context(open_session(connections=gcp.CONNECTIONS))
    return gcp.sources(
        gcp.gcp_client(session, url_of(config, "gcp"), where=_WHERE),
        clock,
        gpu=await to_thread(Path("/dev/nvidiactl").exists),
        window_seconds=config.gcp.window_seconds,
        stop_window_seconds=config.gcp.stop_window_seconds,
        trust_true_at_boot=config.gcp.trust_true_at_boot,
        boot=boot,
    )


async def _azure(
    config: Config, clock: Clock, opened: AsyncExitStack, over: Collection[str]
) -> tuple[Source, ...]:
    from evacd.notice import azure

    session = await opened.enter_async_context(open_session(connections=2))
    return azure.sources(
        session,
        clock,
        url=url_of(config, "azure"),
        where=_WHERE,
        api_version=config.azure.api_version,
        machine=config.azure.machine,
        preempt_assume_seconds=config.azure.preempt_assume_seconds,
        acknowledge=config.azure.acknowledge,
        over=over,
        period=config.notice.poll_seconds,
    )


# --- no cloud needed --------------------------------------------------------------------


async def _shutdown(config: Config, clock: Clock, environ: Mapping[str, str]) -> tuple[Source, ...]:
    watch, address = config.shutdown.watch, config.shutdown.bus_address
    known = address or environ.get("DBUS_SYSTEM_BUS_ADDRESS")
    if watch == "auto" and not known and not await to_thread(_BUS.exists):
        watch = "off"
    if watch == "off":
        return ()
    try:
        from evacd.notice import shutdown
    except ModuleNotFoundError as error:
        reason, cure = f"{error.name} is not installed", "pip install 'evac[agent]'"
        return (AbsentSource("shutdown", reason, cure),)
    return shutdown.sources(
        clock, address=address or None, most_seconds=config.shutdown.budget_seconds
    )


async def _node(
    config: Config, clock: Clock, opened: AsyncExitStack, environ: Mapping[str, str]
) -> tuple[Source, ...]:
    if config.node.watch == "off":
        return ()
    if config.node.watch == "auto" and not environ.get("KUBERNETES_SERVICE_HOST"):
        return ()
    from evacd.notice import node

    access = node.in_cluster(environ, account=config.node.account)
    if access is None:
        cure = "run evacd in a pod with a service account, or set node.watch to auto"
        return (AbsentSource("node", "this is no Kubernetes cluster", cure),)
    name = node_name(config.node.name, environ=environ, otherwise=config.state.node)
    session = await opened.enter_async_context(open_session(connections=2))
    rules = [_rule(rule) for rule in config.node.rules]
    return node.sources(session, clock, access, node=name, rules=rules)


def _rule(rule: NodeRule) -> "Rule":
    from evacd.notice import node

    return node.Rule(
        kind=rule.kind,
        where=node.Where(rule.where),
        key=rule.key,
        confidence=Confidence[rule.confidence.upper()],
        value=rule.value,
        effect=rule.effect,
        message=rule.message,
        window_seconds=rule.window_seconds,
    )


def _calendar(config: Config, clock: Clock, boot: str) -> Iterator[Source]:
    end = config.aws.capacity_block_end
    if end is None:
        return
    from evacd.notice.calendar import CalendarSource

    yield CalendarSource(
        clock,
        end=end,
        early_seconds=config.aws.early_seconds,
        kind="capacity-block-end",
        boot=boot,
    )


async def _user(config: Config, clock: Clock, opened: AsyncExitStack) -> tuple[Source, ...]:
    user, found = config.user, list[Source]()
    if not (user.file or user.exec or user.http):
        return ()
    from evacd.notice.user import ExecSource, FileSource, HttpSource

    if user.file:
        found.append(FileSource(user.file, clock, period=user.period_seconds))
    if user.exec:
        found.append(ExecSource(user.exec, clock, period=user.period_seconds))
    if user.http:
        session = await opened.enter_async_context(open_session(connections=1))
        where = config.origins.get("user.http", "user.http")
        found.append(HttpSource(session, user.http, clock, period=user.period_seconds, where=where))
    return tuple(found)
