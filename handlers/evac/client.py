"""How a workload takes part: `connect`, and what it can say and hear afterwards.

Nothing in here raises into a training loop for want of a daemon. What is wrong in the
program itself (a bad argument) raises ValueError at once.
"""

import logging
import operator
import os
from typing import Any, TypeVar

from evac import _fork
from evac._adoption import Adoption, adopt
from evac._asking import ask_status
from evac._callbacks import Callbacks, OnAdvice, OnOrder, OnStandDown, OnTurn, RunningOrder
from evac._clock import Wall, monotonic, wall
from evac._connection import Connection
from evac._memory import SlotMemory
from evac._plain import Bytes, Kept, Plain
from evac._settings import Settings, read_settings
from evac._staging import Staging, reserve_message, staged_message
from evac.errors import NotConnected
from evac.interval import Interval
from evac.wire import Done, Leave, Message, Mode, Registered

log = logging.getLogger("evac")

_LEAVE_SECONDS = 5.0
# The daemon reads header and tail of what was staged: milliseconds, and more on a busy machine.
_SETTLE_SECONDS = 5.0

_OnOrder = TypeVar("_OnOrder", bound=OnOrder)
_OnStandDown = TypeVar("_OnStandDown", bound=OnStandDown)
_OnAdvice = TypeVar("_OnAdvice", bound=OnAdvice)
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
    """Register with this node's evacd, now or whenever it appears; returns at once.

    Without a daemon the workload runs on unharmed: one warning is logged (logger ``evac``),
    and a background thread tries again every 1 to 15 seconds.

    Args:
        job: Else ``EVAC_JOB``, torchrun's ``TORCHELASTIC_RUN_ID`` or ``SLURM_JOB_NAME``.
        rank: Else ``EVAC_RANK``, ``RANK``, ``SLURM_PROCID``, 0.
        world: Number of ranks. Else ``EVAC_WORLD``, ``WORLD_SIZE``, ``SLURM_NTASKS``, 1.
        priority: Higher is saved first. Else ``EVAC_PRIORITY``, 0.
        mode: ``staged``: the daemon flushes slots by itself. ``callback``: the workload is
            given its turn, see `Client.on_turn`.
        need_seconds: Callback mode: how long the workload's own flush takes, at most; above 0,
            for the turn is planned by it.
        run: Names this launch. Else ``TORCHELASTIC_RUN_ID`` or ``SLURM_JOB_ID``.
        socket: Else ``EVAC_SOCKET``, ``/run/evac/evacd.sock``.

    Raises:
        ValueError: An argument or a variable is wrong; says what was expected.
    """
    client = Client(
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
    client.start()
    return client


class Client:
    """A workload's line to evacd. Every method may be called from any thread.

    After a fork the child's copy is inert: never connected, nothing to acquire.

    Args:
        clock: Read once, for the incarnation that `reserve` takes by default.
        quiet: Whoever made it says by itself that there is no daemon.
    """

    def __init__(self, settings: Settings, *, clock: Wall = wall, quiet: bool = False) -> None:
        self._mode = settings.register.mode
        self._world = settings.register.world
        self._born = int(clock())
        self._connection = Connection(settings, self._hear, monotonic, quiet=quiet)
        self._staging = Staging(self._connection)
        self._callbacks = Callbacks(self._done, monotonic)
        self._plain = Plain(self, rank=settings.register.rank)
        self._forked = False
        _fork.watch(self)

    def start(self) -> None:
        """Begin to look for the daemon; `connect` has done so."""
        self._connection.start()

    # --- what is known --------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the daemon has this workload on board right now."""
        return self._connection.ready

    @property
    def connection(self) -> int:
        """Once it changes, all slots must be reserved again; where they could be kept, it does not."""
        return self._connection.count

    @property
    def socket(self) -> str:
        """Path of the daemon's socket."""
        return self._connection.path

    @property
    def lost(self) -> float | None:
        """When the daemon was lost, in seconds on the monotonic clock.

        None while it is there, and where it never was.
        """
        return self._connection.lost

    @property
    def absence(self) -> str:
        """Why there is no daemon, and what can be done; says nothing of use while there is one."""
        return self._connection.absence()

    @property
    def node(self) -> str:
        """The node's name as the daemon gives it; "" before the first connection."""
        welcome = self._connection.welcome
        return welcome.node if welcome else ""

    @property
    def prefix(self) -> str:
        """Where this job's generations go in each store; "" before the first connection."""
        registered = self._connection.registered
        return registered.prefix if registered else ""

    @property
    def stores(self) -> tuple[str, ...]:
        """The daemon's stores as URLs, in order of preference; () before the first connection."""
        registered = self._connection.registered
        return registered.stores if registered else ()

    @property
    def refusals(self) -> int:
        """How often the daemon did not keep what was staged."""
        return self._staging.refusals

    @property
    def openings(self) -> int:
        """Counts up when an `acquire` that was in vain may succeed: a slot, or a grant, came late."""
        return self._staging.openings

    @property
    def last_refusal(self) -> str:
        """Why the last `acquire` gave None, or the last stage was not kept."""
        return self._staging.last_refusal

    @property
    def order(self) -> RunningOrder | None:
        """The order to evacuate this node, while one runs."""
        return self._callbacks.order

    def wait_connected(self, timeout: float) -> bool:
        """Wait at most *timeout* seconds to be on board."""
        if self._forked:
            return False
        with self._connection.changed:
            self._connection.changed.wait_for(lambda: self._connection.ready, timeout)
        return self._connection.ready

    def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """The daemon's own account of this node.

        Raises:
            NotConnected: No connection, or no answer within *timeout* seconds.
            Refused: The daemon said no.
            ProtocolError: The answer cannot be read.
        """
        if self._forked:
            raise self._connection.missing()
        return ask_status(self._connection, timeout)

    # --- staged mode ----------------------------------------------------------------------

    def reserve(
        self,
        *,
        nbytes: int,
        body: str,
        layout: str = "",
        incarnation: int | None = None,
        slots: int = 3,
        timeout: float = 60.0,
    ) -> int:
        """Ask for memory to stage in; replaces what was reserved before.

        Returns once the first slot is mapped; the others arrive in the background.

        Args:
            nbytes: Size of one slot: header page, body and tail.
            body: The body's file name in a store: ``__0_0.distcp``, ``weights.bin``.
            layout: Hash of DCP's ``.metadata``, or any stable name of the body's layout.
            incarnation: Which start of the job this is, equal on all ranks and higher than that of
                every start before; no older one can overwrite what a newer one has staged. In a
                world of one it is, by default, the second in which this client was made.
            slots: How many are wanted; there may be fewer.
            timeout: Seconds; the daemon fills the first slot with real memory meanwhile.

        Returns:
            The incarnation, for `SlotMemory.begin` and the `Header`.

        Raises:
            ValueError: An argument is outside of what the protocol allows, or there are many
                ranks and *incarnation* is missing.
            Refused: Not that much memory, or not for this workload; says why.
            NotConnected: No connection, or no slot within *timeout* seconds.
            SegmentError: What came is not a sealed slot.
        """
        request = reserve_message(
            nbytes=nbytes, body=body, layout=layout, incarnation=incarnation, slots=slots,
            world=self._world, born=self._born,
        )  # fmt: skip
        if self._forked:
            raise self._connection.missing()
        self._staging.reserve(request, timeout)
        return request.incarnation

    def acquire(self, timeout: float = 0.25) -> SlotMemory | None:
        """A slot to write in, yours alone until it is given to `staged` or `release`.

        Args:
            timeout: Seconds; it waits for the daemon's answer, and for a slot of the reservation that
                is still on its way. For one that is in use it does not wait.

        Returns:
            None where no slot is free, no daemon is there or none answers within *timeout*:
            skip this stage and train on. `last_refusal` says which it was.
        """
        if self._forked:
            self._staging.last_refusal = self._connection.missing().reason
            return None
        return self._staging.acquire(timeout)

    def staged(self, slot: SlotMemory, step: int, *, interval: Interval | None = None) -> None:
        """Say that *slot* holds all of *step*, and give it back.

        The message is on its way when this returns, so that a process stopped right after
        it has been heard. A refusal comes later: logged as a warning, counted in `refusals`.
        *interval* is for the status: how often this job stages, and why.
        """
        request = staged_message(slot, step, interval)
        if not self._forked:
            self._staging.staged(slot, request)

    def release(self, slot: SlotMemory) -> None:
        """Give *slot* back unwritten."""
        if not self._forked:
            self._staging.release(slot)

    def adopt(self, timeout: float = 30.0) -> Adoption:
        """What processes of this job and run, dead ones too, hold whole on this node: to be read only.

        Of all ranks, for ranks move on a restart. It stays as it is until the adoption is closed.

        Raises:
            NotConnected: No connection, or no answer within *timeout* seconds.
            Refused: It is of another run.
            ProtocolError, SegmentError: What came cannot be read.
        """
        if self._forked:
            raise self._connection.missing()
        return adopt(self._connection, timeout)

    # --- plain bytes ----------------------------------------------------------------------

    def stage(
        self, data: Bytes, step: int, *, incarnation: int | None = None, timeout: float = 0.25
    ) -> bool:
        """Stage *data*, one piece or several end to end, as all of *step*; reserves by itself.

        Returns:
            False where no daemon is there or no slot is free within *timeout* seconds, as of
            `acquire`: `last_refusal` says which.

        Raises:
            ValueError: As `reserve`, of which *incarnation* is one.
        """
        reason = self._plain.stage(data, operator.index(step), incarnation, timeout)
        self._staging.last_refusal = reason or self._staging.last_refusal
        return not reason

    def newest(self, store: str | None = None) -> Kept | None:
        """What this rank staged last that is whole on all ranks, from memory or the daemon's stores.

        Each rank looks by itself: where there are several, compare the steps.

        Args:
            store: To be looked through as well.

        Raises:
            NotConnected: No daemon; it alone knows where the job's generations are.
            GenerationError, StoreError: There was something once, and it is not usable now.
        """
        if self._forked or not self.connected:
            raise self._connection.missing()
        return self._plain.newest(store)

    # --- orders and turns -----------------------------------------------------------------

    def on_turn(self, function: _OnTurn) -> _OnTurn:
        """Callback mode: flush in *function*, called with a `TurnBudget` in its own thread.

        It returns the bytes that it saved (or None); an exception tells the daemon that the
        flush failed. A decorator.

        Raises:
            ValueError: The client is not in callback mode.
        """
        if self._mode != Mode.CALLBACK:
            raise ValueError(f"on_turn: expected connect(mode='callback'), mode is {self._mode!r}")
        if not self._forked:
            self._callbacks.on_turn(function)
        return function

    def on_order(self, function: _OnOrder) -> _OnOrder:
        """Call *function* with each order, amendment, or order that runs already. A decorator."""
        if not self._forked:
            self._callbacks.on_order(function)
        return function

    def on_stand_down(self, function: _OnStandDown) -> _OnStandDown:
        """Call *function* with the reason when the order is withdrawn. A decorator."""
        if not self._forked:
            self._callbacks.on_stand_down(function)
        return function

    def on_advice(self, function: _OnAdvice) -> _OnAdvice:
        """Call *function* with each advisory notice (an `evac.wire.Advice`). A decorator."""
        if not self._forked:
            self._callbacks.on_advice(function)
        return function

    # --- the end --------------------------------------------------------------------------

    def leave(self) -> None:
        """The daemon frees the slots and saves nothing of them, now or later. Closes."""
        if not self._forked:
            try:
                self._connection.ask(Leave(), _LEAVE_SECONDS)
            except NotConnected as error:
                log.debug("left without a word: %s", error.reason)
        self.close()

    def close(self) -> None:
        """Hang up; waits a moment for the daemon to have taken what was staged last.

        It stays there for as long as this process lives, and at the process's end the daemon saves
        at once what is not safe yet. To have it freed instead, `leave`.
        """
        if not self._forked:
            self._staging.settle(_SETTLE_SECONDS)
            self._connection.close()
            self._callbacks.stop()
            self._staging.stop()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def forget(self) -> None:
        """In a forked child: become inert. The parent's connection is not touched."""
        self._forked = True
        self._connection.forget()

    def _hear(self, message: Message) -> None:
        if isinstance(message, Registered):
            self._callbacks.forget()
        else:
            self._callbacks.hear(message)

    def _done(self, message: Done) -> None:
        self._connection.post(message)
