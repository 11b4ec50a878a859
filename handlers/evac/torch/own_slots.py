"""Slots without a daemon: this process's own memory, and one thread that commits it.

Nothing here survives a kill; what was committed before it does.
"""

import logging
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from threading import Condition, Event, Thread

from evac._clock import monotonic
from evac._memory import Mapping, SlotMemory
from evac.commit import Known, Share, chunk_sums, put_shares, retain
from evac.errors import EvacError
from evac.generation import Generation
from evac.manifest import Manifest
from evac.segment import PAGE, Header
from evac.store import Store, open_store
from evac.store.threads import in_thread
from evac.torch import blocking
from evac.torch.at_exit import at_exit, crashed
from evac.torch.choice import Alone, Choice
from evac.torch.complaints import Complaints
from evac.torch.identity import Identity
from evac.torch.layout import Layout

log = logging.getLogger("evac")

KEEP = 3
# How soon a rank hears what rank 0 has picked.
_LISTEN_SECONDS = 0.02
# For the store and for the other ranks; past it the last generation is given up.
_CLOSE_SECONDS = 120.0
# The other ranks may hang in a collective by then, and the launcher waits for this one.
CRASH_SECONDS = 10.0
_END_SECONDS = 5.0


class _Is(Enum):
    FREE = 0
    WRITING = 1
    STAGED = 2
    COMMITTING = 3


@dataclass
class _Own:
    slot: SlotMemory
    state: _Is = _Is.FREE
    header: Header | None = None
    # Of what is staged here: by the time it is committed, the state may be laid out anew.
    layout: Layout | None = None
    # Reserved before the others, and of another size: it goes once it is committed.
    old: bool = False


class OwnSlots:
    """See `Slots`. A store that fails is complained about; training goes on.

    Args:
        choose: Makes the choice among ranks for an incarnation.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        identity: Identity,
        choose: Callable[[int], Choice],
        complaints: Complaints,
        *,
        slots: int,
    ) -> None:
        self.prefix = prefix
        self.stores = (url,)
        self.epoch = 0
        self._identity = identity
        self._choose = choose
        self._choice: Choice = Alone()
        self._complaints = complaints
        self._slots = slots
        self._store: Store = open_store(url)
        self._known = Known()
        self._owned: list[_Own] = []
        self._layout: Layout | None = None
        self._changed = Condition()
        self._closing = False
        self._resting = False
        self._patience = _CLOSE_SECONDS
        self._thread: Thread | None = None

    def ready(self) -> str:
        """See `Slots.ready`."""
        return ""

    def reserve(self, nbytes: int, layout: Layout, incarnation: int) -> str:
        """See `Slots.reserve`. What is there of that size is used again.

        What was staged before is committed all the same, and with the layout that it has.
        """
        with self._changed:
            self._resting = False
            if self._owned and self._owned[0].slot.nbytes == nbytes:
                self._layout = layout
                return ""
        try:
            # Shared, so that a forked data loader does not make every write copy a page.
            owned = [
                _Own(SlotMemory(number, 0, Mapping(-1, nbytes))) for number in range(self._slots)
            ]
        except OSError as error:
            return f"no slots of {nbytes:,} bytes: {error.strerror}"
        for one in owned:
            one.slot.populate()
        with self._changed:
            for one in self._owned:
                one.old = True
            self._owned, self._layout = [*owned, *_used(self._owned)], layout
        # Both live on while nobody stages here: the ranks' choices stay in step.
        if self._thread is None:
            self._choice = self._choose(incarnation)
            self._thread = Thread(target=self._run, name="evac-commit", daemon=True)
            self._thread.start()
            at_exit(self._at_exit)
        return ""

    def acquire(self) -> SlotMemory | None:
        """See `Slots.acquire`. Of two that wait to be committed, the older one gives way."""
        with self._changed:
            free = next((one for one in self._owned if one.state is _Is.FREE), None)
            if free is None:
                waiting = [one for one in self._waiting() if not one.old]
                if len(waiting) > 1 and _step(waiting[-1]) != self._choice.picked():
                    free = waiting[-1]
            if free is None:
                return None
            free.state, free.header, free.layout = _Is.WRITING, None, None
            return free.slot

    def staged(self, slot: SlotMemory, header: Header) -> None:
        """See `Slots.staged`."""
        self._put(slot, _Is.STAGED, header)

    def release(self, slot: SlotMemory) -> None:
        """See `Slots.release`."""
        self._put(slot, _Is.FREE, None)

    def close(self, patience: float = _CLOSE_SECONDS) -> None:
        """See `Slots.close`: commits the newest generation first.

        Args:
            patience: Seconds to wait for it.
        """
        with self._changed:
            # What is newest is not here while nobody stages here.
            self._patience = min(patience, _END_SECONDS) if self._resting else patience
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(patience + _END_SECONDS)
            if self._thread.is_alive():
                text = f"{self._store.url}: the last generation is not kept after {patience:g} s"
                self._complaints.warn("close", text)

    def rest(self) -> None:
        """Nobody stages here for now: commit what waits, in the background, and free the memory."""
        with self._changed:
            self._resting = True
            self._changed.notify_all()

    def _at_exit(self) -> None:
        self.close(CRASH_SECONDS if crashed() else _CLOSE_SECONDS)

    def _put(self, slot: SlotMemory, state: _Is, header: Header | None) -> None:
        with self._changed:
            one = next(one for one in self._owned if one.slot is slot)
            one.state, one.header, one.layout = state, header, self._layout
            self._changed.notify_all()

    def _waiting(self) -> list[_Own]:
        """What is staged, newest first."""
        staged = [one for one in self._owned if one.state is _Is.STAGED]
        return sorted(staged, key=_step, reverse=True)

    def _run(self) -> None:
        while (one := self._next()) is not None:
            try:
                blocking.run(lambda one=one: self._commit(one))  # type: ignore[misc] # binds the loop's variable
            except EvacError as error:
                kind = f"commit:{type(error).__name__}"
                self._complaints.fail(kind, f"not kept: {error}", expected=True)
            except Exception as error:  # noqa: BLE001 - a bug in committing must not end the thread; it is logged with its trace
                self._complaints.fail(f"commit:{type(error).__name__}", f"not kept: {error!r}")
            with self._changed:
                self._choice.done()
                one.state, one.header, one.layout = _Is.FREE, None, None
                self._owned = _used(self._owned)
        self._choice.end()
        until = monotonic() + _END_SECONDS
        with self._changed:
            self._owned = []
            # The store that the others listen at may be rank 0's own, and end with it.
            while self._choice.leads and not self._choice.ended() and monotonic() < until:
                self._changed.wait(_LISTEN_SECONDS)
        if self._identity.rank == 0 and self._identity.world > 1:
            self._retain()

    def _retain(self) -> None:
        """Once more: what others made whole after rank 0's last look was not counted then."""
        try:
            blocking.run(lambda: retain(self._store, self.prefix, keep=KEEP, known=self._known))
        except* EvacError as group:
            log.info("%s: old generations stay: %s", self._store.url, blocking.first(group))

    def _next(self) -> _Own | None:
        """The next generation to commit; None when there is no more, and none will come."""
        until = None
        with self._changed:
            while True:
                if (one := self._pick()) is not None:
                    return one
                if self._closing:
                    until = until or monotonic() + self._patience
                    if not self._waiting() or monotonic() > until:
                        return None
                    if not self._choice.leads and self._choice.ended():
                        # Picked in the moment between the last look and the end.
                        return self._pick()
                elif self._resting:
                    until = until or monotonic() + _CLOSE_SECONDS
                    if not self._waiting() or monotonic() > until:
                        self._owned = []
                else:
                    until = None
                # With something to commit it is the other ranks that are waited for.
                self._changed.wait(_LISTEN_SECONDS if self._waiting() else None)

    def _pick(self) -> _Own | None:
        waiting, choice = self._waiting(), self._choice
        if not waiting:
            return None
        if choice.leads:
            if not choice.settled():
                return None
            one = waiting[0]
            choice.pick(_step(one))
        else:
            step = choice.picked()
            found = next((held for held in waiting if _step(held) == step), None)
            if found is None:
                if step is not None and step < _step(waiting[0]):
                    choice.done()  # this rank had to leave it out
                return None
            one = found
        one.state = _Is.COMMITTING
        for older in self._waiting():
            if _step(older) < _step(one):
                older.state = _Is.FREE
        self._owned = _used(self._owned)
        return one

    async def _commit(self, one: _Own) -> None:
        layout, header, me = one.layout, one.header, self._identity
        assert layout is not None
        assert header is not None
        await put_shares(self.prefix, [share(self._store, me, layout, header, one.slot)])
        if me.rank == 0:
            await retain(self._store, self.prefix, keep=KEEP, known=self._known)


def share(store: Store, me: Identity, layout: Layout, header: Header, slot: SlotMemory) -> Share:
    """What *slot* holds, as a share of its generation."""
    body = slot.memory[PAGE : PAGE + header.body_nbytes]
    manifest = Manifest(
        job=me.job,
        run=me.run,
        generation=Generation(header.incarnation, header.step),
        rank=me.rank,
        world=me.world,
        layout=layout.name,
        files=(),
        metadata_nbytes=len(layout.metadata),
        metadata_sha256=layout.name,
        items=tuple(layout.items()),
        node=socket.gethostname(),
    )

    async def sums(place: int) -> tuple[int, ...]:
        file = layout.files[place]
        return await in_thread(partial(_sums, body[file.offset : file.offset + file.nbytes]))

    return Share(
        store=store,
        manifest=manifest,
        body=body,
        files=layout.files,
        metadata=layout.metadata,
        weights_metadata=layout.weights_metadata,
        sums=sums,
    )


def _sums(data: memoryview, _: Event) -> tuple[int, ...]:
    with data:
        return chunk_sums(data)


def _used(owned: Iterable[_Own]) -> list[_Own]:
    """Without those that nothing more is staged in, as far as nothing is."""
    return [one for one in owned if not (one.old and one.state is _Is.FREE)]


def _step(one: _Own) -> int:
    return one.header.step if one.header is not None else -1
