"""The asyncio client: the same words over the same wire as `evac.connect`, for a loop's own use.

::

    async with evac.aio.connect("index", mode="callback", need_seconds=5.0) as client:
        async for heard in client.events():
            ...

Nothing here raises into a program for want of a daemon: without one, slots are not granted, one
warning is logged, and the client is on board again when one appears. All methods are for the
thread of the loop on which the client was entered.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, TypeVar

from evac import _fork
from evac._adoption import Adopting, Adoption
from evac._aio_heard import Event, OnTurn, Unasked
from evac._aio_line import Asked, Lines
from evac._aio_slots import Slots
from evac._callbacks import RunningOrder
from evac._clock import Wall, wall
from evac._memory import SlotMemory, read_answer
from evac._settings import Settings, read_settings
from evac._staging import reserve_message, staged_message
from evac.errors import NotConnected, ProtocolError, Refused
from evac.interval import Interval
from evac.wire import (
    Adopt,
    AskStatus,
    Leave,
    Message,
    Mode,
    Refuse,
    Registered,
    Status,
)

__all__ = ["Client", "Event", "OnTurn", "connect"]

log = logging.getLogger("evac")

_LEAVE_SECONDS = 5.0
# The daemon reads header and tail of what was staged: milliseconds, and more on a busy machine.
_SETTLE_SECONDS = 5.0
_OnTurn = TypeVar("_OnTurn", bound=OnTurn)


def connect(
    job: str | None = None,
    *,
    rank: int | None = None,
    world: int | None = None,
    priority: int | None = None,
    mode: Mode | str = Mode.STAGED,
    need_seconds: float = 0.0,
    run: str | None = None,
    socket: str | os.PathLike[str] | None = None,
) -> "Client":
    """A client that looks for this node's evacd while its ``async with`` block runs.

    Arguments and environment are those of `evac.connect`.

    Raises:
        ValueError: An argument or a variable is wrong; says what was expected.
    """
    return Client(
        read_settings(
            os.environ,
            job=job,
            rank=rank,
            world=world,
            priority=priority,
            mode=mode,
            need_seconds=need_seconds,
            run=run,
            socket=socket,
        )
    )


class Client:
    """A workload's line to evacd, on one event loop.

    After a fork the child's copy is inert: never connected, nothing to acquire.

    Args:
        clock: Read once, for the incarnation that `reserve` takes by default.

    Attributes:
        refusals: How often the daemon did not keep what was staged.
        last_refusal: Why the last `acquire` gave None, or the last stage was not kept.
    """

    def __init__(self, settings: Settings, *, clock: Wall = wall) -> None:
        self.refusals = 0
        self.last_refusal = ""
        self._mode = settings.register.mode
        self._world = settings.register.world
        self._born = int(clock())
        self._slots = Slots(self._not_kept)
        self._lines = Lines(settings, self._slots, self._hear)
        self._slots.lines = self._lines
        self._unasked = Unasked(self._lines.own, self._lines.post)
        self._forked = False
        _fork.watch(self)

    async def __aenter__(self) -> "Client":
        self._lines.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    # --- what is known --------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the daemon has this workload on board right now."""
        return self._lines.ready

    @property
    def connection(self) -> int:
        """Once it changes, all slots must be reserved again; where they could be kept, it does not."""
        return self._slots.epoch

    @property
    def order(self) -> RunningOrder | None:
        """The order to evacuate this node, while one runs."""
        return self._unasked.order

    @property
    def node(self) -> str:
        """The node's name as the daemon gives it; "" before the first connection."""
        return self._lines.welcome.node if self._lines.welcome else ""

    @property
    def prefix(self) -> str:
        """Where this job's generations go in each store; "" before the first connection."""
        return self._lines.board.prefix if self._lines.board else ""

    @property
    def stores(self) -> tuple[str, ...]:
        """The daemon's stores as URLs, in order of preference; () before the first connection."""
        return self._lines.board.stores if self._lines.board else ()

    async def wait_connected(self, within: float) -> bool:
        """Wait at most *within* seconds to be on board."""
        return not self._forked and await self._lines.wait(lambda: self._lines.ready, within)

    async def status(self, within: float = 5.0) -> dict[str, Any]:
        """The daemon's own account of this node.

        Raises:
            NotConnected: No connection, or no answer within *within* seconds.
            Refused: The daemon said no.
            ProtocolError: The answer cannot be read.
        """
        got: list[dict[str, Any] | ProtocolError] = []

        def read(message: Message | None, fd: int | None) -> None:
            if isinstance(message, Status) and fd is not None:
                try:
                    got.append(read_answer(fd, message.nbytes))
                except ProtocolError as error:
                    got.append(error)

        answer = await self._ask(AskStatus(), within, read)
        if isinstance(answer, Refuse):
            raise Refused(answer.reason)
        if not got:
            raise ProtocolError(f"status was answered with {answer.type!r}")
        if isinstance(got[0], ProtocolError):
            raise got[0]
        return got[0]

    # --- staged mode ----------------------------------------------------------------------

    async def reserve(
        self,
        *,
        nbytes: int,
        body: str,
        layout: str = "",
        incarnation: int | None = None,
        slots: int = 3,
        within: float = 60.0,
    ) -> int:
        """Ask for memory to stage in; see `evac.Client.reserve`.

        Raises:
            ValueError: An argument is outside of what the protocol allows, or there are many
                ranks and *incarnation* is missing.
            Refused: Not that much memory, or not for this workload; says why.
            NotConnected: No connection, or no slot within *within* seconds.
            SegmentError: What came is not a sealed slot.
        """
        request = reserve_message(
            nbytes=nbytes, body=body, layout=layout, incarnation=incarnation, slots=slots,
            world=self._world, born=self._born,
        )  # fmt: skip
        if self._forked or not self._lines.ready:
            raise self._lines.missing()
        reservation = self._slots.reservation()
        self._lines.post(request, reservation.hear)
        await self._lines.wait(lambda: reservation.count or reservation.failure, within)
        if reservation.count:
            return request.incarnation
        raise reservation.failure or NotConnected(self._lines.path, f"no slot within {within:g} s")

    async def acquire(self, within: float = 0.25) -> SlotMemory | None:
        """A slot to write in, yours alone until it is given to `staged` or `release`.

        Write large bodies in a thread (`asyncio.to_thread`): a copy holds up the loop.

        Args:
            within: Seconds; it waits for the daemon's answer, and for a slot of the reservation that
                is still on its way. For one that is in use it does not wait.

        Returns:
            None where no slot is free, no daemon is there or none answers within *within*:
            skip this stage and go on. `last_refusal` says which it was.
        """
        if self._forked:
            self.last_refusal = self._lines.missing().reason
            return None
        slot, self.last_refusal = await self._slots.acquire(within)
        return slot

    async def staged(
        self, slot: SlotMemory, step: int, *, interval: Interval | None = None
    ) -> bool:
        """Say that *slot* holds all of *step*, give it back, and wait for the daemon's word.

        The message is on its way before this waits. A cancelled wait takes nothing back.

        Args:
            interval: See `evac.Client.staged`.

        Returns:
            Whether the daemon keeps it, as far as is known: where it refused, a warning is logged;
            while there is none the slot keeps it, and the next one is told. `last_refusal` says
            which it was.
        """
        request = staged_message(slot, step, interval)
        if self._forked:
            return False
        if not self._slots.is_current(slot):
            return self._not_kept(step, "its slot belongs to a connection that is gone")
        word = self._slots.staged(slot, request)
        if word is None:
            self.last_refusal = self._lines.missing().reason
            return False
        answer = await asyncio.shield(word)
        return answer is not None and not isinstance(answer, Refuse)

    def release(self, slot: SlotMemory) -> None:
        """Give *slot* back unwritten."""
        if not self._forked:
            self._slots.release(slot)

    async def adopt(self, within: float = 30.0) -> Adoption:
        """What processes of this job and run, dead ones too, hold whole here; see `evac.Client.adopt`.

        Raises:
            NotConnected: No connection, or no answer within *within* seconds.
            Refused: It is of another run.
            ProtocolError, SegmentError: What came cannot be read.
        """
        adopting = Adopting(self._lines.missing, self._lines.release)
        if self._forked or not self._lines.post(Adopt(), adopting.hear):
            raise self._lines.missing()
        try:
            if not await self._lines.wait(lambda: adopting.over, within):
                raise NotConnected(self._lines.path, f"no answer to adopt in {within:g} s")
            return adopting.adoption()
        except BaseException:
            adopting.abandon()
            raise

    # --- orders and turns -----------------------------------------------------------------

    def events(self) -> AsyncGenerator[Event]:
        """Orders, amendments, ends of orders and advice, from the running order on.

        Ends when the client is closed. Who takes none for long loses the oldest.
        """
        return self._unasked.events()

    def on_turn(self, function: _OnTurn) -> _OnTurn:
        """Callback mode: flush in the coroutine function *function*, called with a `TurnBudget`.

        It returns the bytes that it saved (or None); an exception tells the daemon that the
        flush failed. A decorator.

        Raises:
            ValueError: The client is not in callback mode.
        """
        if self._mode != Mode.CALLBACK:
            raise ValueError(f"on_turn: expected connect(mode='callback'), mode is {self._mode!r}")
        self._unasked.on_turn(function)
        return function

    # --- the end --------------------------------------------------------------------------

    async def leave(self) -> None:
        """The daemon frees the slots and saves nothing of them, now or later. Closes."""
        if not self._forked:
            try:
                await self._ask(Leave(), _LEAVE_SECONDS)
            except NotConnected as error:
                log.debug("left without a word: %s", error.reason)
        await self.close()

    async def close(self) -> None:
        """Hang up; waits a moment for the daemon to have taken what was staged last."""
        if self._forked:
            return
        try:
            if self._slots.unconfirmed:
                await asyncio.wait(set(self._slots.unconfirmed), timeout=_SETTLE_SECONDS)
        finally:
            # Whoever cancels this wants it gone, too.
            try:
                await self._lines.close()
            finally:
                self._slots.forget()
                self._unasked.close()

    def forget(self) -> None:
        """In a forked child: become inert. The parent's connection is not touched."""
        self._forked = True
        self._lines.forget()

    # --- the inside -----------------------------------------------------------------------

    async def _ask(
        self, message: Message, within: float, read: Asked = lambda _message, _fd: None
    ) -> Message:
        if self._forked:
            raise self._lines.missing()
        return await self._lines.ask(message, within, read)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Registered):
            self._unasked.forget()
        else:
            self._unasked.hear(message)

    def _not_kept(self, step: int, reason: str) -> bool:
        self.refusals += 1
        self.last_refusal = reason
        log.warning("step %d was staged but is not kept: %s", step, reason)
        return False
