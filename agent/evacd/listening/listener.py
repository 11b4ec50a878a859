"""Runs all sources side by side, from the first moment on until it is cancelled.

Those that need no cloud begin at once; the cloud's begin when it is known which it is. Where it
cannot be found out it is asked for again and again: a metadata service may come up late.
"""

import asyncio
from asyncio import TaskGroup
from collections.abc import Callable, Collection, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

import structlog

from evac.errors import EvacError
from evacd.clock import Clock
from evacd.config import Config
from evacd.listening.absent import AbsentSource
from evacd.listening.attend import Again, attend
from evacd.listening.ears import Ears
from evacd.listening.find import Found, find
from evacd.listening.sources import independent, of_cloud
from evacd.notice import Source, patience_of
from evacd.notice.detect import DMI

if TYPE_CHECKING:
    from evacd.notice.azure import AzureSource
    from evacd.notice.node import NodeSource
    from evacd.notice.shutdown import ShutdownSource

log = structlog.get_logger()

_FIND_AGAIN_SECONDS = 30.0
_ACKNOWLEDGE_AGAIN_SECONDS = 1.0
_BUG = "this is a bug in evac: please report it with the log; the other sources go on"


class Listener:
    """All sources of one daemon; an async context that holds what they have open."""

    def __init__(
        self,
        config: Config,
        ears: Ears,
        clock: Clock,
        *,
        boot: str = "",
        over: Callable[[], Collection[str]] = tuple,
        dmi: Path = DMI,
        extra: Iterable[Source] = (),
        again: Again | None = None,
        find_again_seconds: float = _FIND_AGAIN_SECONDS,
    ) -> None:
        """Make it ready; nothing is asked yet.

        Args:
            boot: Kernel boot id.
            over: Ids of events that this machine has been through before it booted; asked when
                the cloud is known.
            dmi: Where the firmware's strings are.
            extra: More sources, beside those of the configuration.
            again: How long a source whose code failed is left alone.
            find_again_seconds: Between two attempts to find out which cloud this is.
        """
        self._config = config
        self._ears = ears
        self._clock = clock
        self._boot = boot
        self._over = over
        self._dmi = dmi
        self._extra = tuple(extra)
        self._again = again
        self._find_again = find_again_seconds
        self._opened = AsyncExitStack()
        self._acknowledged: set[str] = set()
        # Why Azure was not told of a notice, and from when on it is tried again.
        self._unacknowledged: dict[str, tuple[str, float]] = {}
        self._independent: tuple[Source, ...] = ()
        self._attended: list[Source] = []
        self._looked = False
        self.found = Found("", "not found out yet", final=False)
        self.complete = False
        self.shutdown: ShutdownSource | None = None
        self.node: NodeSource | None = None
        self.azure: AzureSource | None = None

    async def __aenter__(self) -> Self:
        """Make the sources that need no cloud.

        Raises:
            ConfigError: A URL is none.
        """
        async with AsyncExitStack() as opened:
            self._independent = await independent(
                self._config, self._clock, opened, boot=self._boot
            )
            # Whatever fails before this closes what was opened.
            self._opened = opened.pop_all()
        for source in (*self._independent, *self._extra):
            self._expect(source)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close what they had open."""
        await self._opened.aclose()

    async def run(self) -> NoReturn:
        """Listen for ever.

        Raises:
            ConfigError: The metadata service's address is none.
        """
        async with TaskGroup() as tasks:
            for source in (*self._independent, *self._extra):
                self._attend(source, tasks)
            cloud = await self._find()
            for source in await self._of_cloud(cloud):
                self._expect(source)
                self._attend(source, tasks)
            # From here on all sources there are have been told to the ears.
            self.complete = True
            log.info("cloud.heard", cloud=cloud or "none", how=self.found.how)
            await asyncio.Event().wait()
        raise AssertionError("the keepers never end")

    @property
    def waiting(self) -> str:
        """Why nothing can be said to be heard yet; "" where a source has answered, or none is."""
        if not self._looked:
            return "which cloud this is, is being found out"
        if not self.found.final and not self._ears.shown():
            return f"no cloud is known: {self.found.how}; {self.found.cure}"
        if self.found.cloud and not self.complete:
            return f"{self.found.cloud} is not listened to yet"
        return self._ears.waiting

    async def _find(self) -> str:
        told = False
        while True:
            self.found = found = await self._look()
            self._looked = True
            if found.cure and not told:
                told = True
                log.warning("cloud.undetected", reason=found.how, cure=found.cure)
            if found.final:
                return found.cloud
            await asyncio.sleep(self._find_again)

    async def _look(self) -> Found:
        try:
            return await find(self._config, dmi=self._dmi)
        except EvacError:  # a setting is wrong: whoever set it is told
            raise
        except Exception as error:  # a bug here is not the end of the sources that need no cloud
            log.exception("cloud.failed")
            return Found("", f"its code failed: {type(error).__name__}", _BUG, final=False)

    async def _of_cloud(self, cloud: str) -> tuple[Source, ...]:
        try:
            return await of_cloud(
                self._config, cloud, self._clock, self._opened, boot=self._boot, over=self._over()
            )
        except EvacError:
            raise
        except Exception as error:  # as above
            log.exception("cloud.failed")
            return (AbsentSource(cloud, f"its code failed: {type(error).__name__}", _BUG),)

    def _expect(self, source: Source) -> None:
        self._ears.expect(source.name, lambda: str(getattr(source, "degraded", "")))
        match source.name:
            case "shutdown":
                self.shutdown = source  # type: ignore[assignment]  # by its name
            case "node" if hasattr(source, "shutting_down"):
                self.node = source  # type: ignore[assignment]  # by its name
            case "azure" if hasattr(source, "acknowledge"):
                self.azure = source  # type: ignore[assignment]  # by its name

    def stuck(self) -> list[str]:
        """Sources that have not said anything for longer than any that lives."""
        return [
            source.name
            for source in self._attended
            if (patience := patience_of(source)) is not None
            and self._ears.silence(source.name) > patience
        ]

    def _attend(self, source: Source, tasks: TaskGroup) -> None:
        self._attended.append(source)
        crashed = partial(self._ears.crashed, source.name)
        tasks.create_task(attend(source, self._ears.hear, crashed, self._clock, again=self._again))

    # --- what the sources are told ---------------------------------------------------------

    @property
    def node_shutting_down(self) -> bool:
        """The kubelet says that this machine shuts down."""
        return self.node is not None and self.node.shutting_down

    async def let_go(self, *, all_saved: bool) -> None:
        """The flush has settled, or there is none: nothing needs to wait for this daemon.

        Safe to call again and again, and to be called late.

        Args:
            all_saved: Everything that was on board is safe.
        """
        try:
            await self._let_go(all_saved=all_saved)
        except Exception:  # nobody waits for us because of a bug, and we do not end of one
            log.exception("let_go.failed")

    async def _let_go(self, *, all_saved: bool) -> None:
        if self.shutdown is not None:
            await self.shutdown.release()
        if self.azure is None or not self._config.azure.acknowledge or not all_saved:
            return
        for notice in self._ears.standing("azure"):
            before, again = self._unacknowledged.get(notice.id, ("", 0.0))
            if notice.id in self._acknowledged or self._clock.monotonic() < again:
                continue
            if why := await self.azure.acknowledge(notice.id):
                # A service that is busy now may take it yet; who reads is told once.
                again = self._clock.monotonic() + _ACKNOWLEDGE_AGAIN_SECONDS
                self._unacknowledged[notice.id] = why, again
                if why == before:
                    continue
                log.warning("notice.unacknowledged", id=notice.id, reason=why)
            else:
                self._acknowledged.add(notice.id)
                log.info("notice.acknowledged", id=notice.id)
