"""All ranks do a thing at the end of the same step, with no collective to arrange it.

What may come up at any moment on any rank (a notice: stage now; a state that outgrew its
layout: plan anew) must be done by all of them at the same step, or be worth nothing: a
generation that one rank lacks is not whole, and a collective that one rank does not enter
hangs the others. An own collective each step would cost every step of a training run for what
happens once a day. So a thread of each rank listens to the store that the ranks met in:

- who wants something writes it there (`ask`);
- each thread then holds its rank at the end of the step that it is in, and says which one
  that is. It speaks for a training thread that hangs in a collective, too: whoever is in the
  same step is needed to end it, and is not held before;
- the greatest of those steps is the one. All ranks reach it, for the one that is in it has
  been through all before, and none is past its end.

Where a rank says nothing for as long as the others have patience, they agree, by
compare-and-set, that nothing is to be done; whoever asked for it asks again, a few times and later
and later. A step that nothing is asked for costs a lock.
"""

import logging
import threading
from collections import Counter, defaultdict
from contextlib import suppress

from evac._clock import Monotonic, monotonic
from evac.torch.keystore import KeyStore

log = logging.getLogger("evac")

_NEVER = "never"
# Where no rank has ended a step yet: at the end of the first one.
_FIRST = "first"
# Seconds between two looks; with very many ranks fewer, for one store answers them all.
_LOOK_SECONDS = 0.05
_LOOKS_PER_SECOND = 4000.0
# A rank that was silent may be back; each time costs all the others their patience.
_TRIES = 3
_FIRST_PAUSE_SECONDS = 10.0
# Looks after which a store that fails is taken for gone.
_FAILURES = 10


class Gate:
    """One rank's part; all ranks of a world have one over the same store.

    Args:
        store: No other thread uses this object of it (`Store.clone`).
        patience: Seconds that the ranks wait for each other's word.
    """

    def __init__(
        self,
        store: KeyStore | None,
        *,
        rank: int = 0,
        world: int = 1,
        patience: float = 10.0,
        clock: Monotonic = monotonic,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world = world
        self._patience = patience
        self._clock = clock
        self._look = max(_LOOK_SECONDS, world / _LOOKS_PER_SECOND)
        self._changed = threading.Condition()
        self._step: int | None = None
        self._held = False
        self._at: dict[int, list[str]] = defaultdict(list)
        self._first: list[str] = []
        self._wanted: list[str] = []
        # What this rank has asked for, by number; and what is to be asked again, from when on.
        self._mine: dict[int, str] = {}
        self._refused: Counter[str] = Counter()
        self._again: list[tuple[float, str]] = []
        self._ended = threading.Event()
        self._asked = threading.Event()
        self._thread: threading.Thread | None = None
        if store is not None and world > 1:
            self._thread = threading.Thread(target=self._listen, name="evac gate", daemon=True)
            self._thread.start()

    def ask(self, what: str) -> None:
        """Have all ranks do *what* soon, at the end of one step; from any thread, at once.

        What was asked and is not arranged yet is asked once.
        """
        with self._changed:
            if what not in self._wanted:
                self._wanted.append(what)
        self._asked.set()

    def passed(self, step: int) -> tuple[str, ...]:
        """The training thread has ended *step*: what is to be done now, on all ranks alike.

        Called for every step, in rising order. Waits only while the ranks agree: for the
        slowest thread, not for the slowest step.
        """
        with self._changed:
            if self._thread is None:
                todo, self._wanted = self._wanted, []
                return tuple(todo) if self._world == 1 else ()
            if self._held:
                # Whatever happens to the thread, training is not held for longer.
                self._changed.wait_for(lambda: not self._held, timeout=2 * self._patience)
            self._step = step + 1
            if not self._at and not self._first:
                return ()
            todo, self._first = self._first, []
            # Steps may be numbered with gaps; all ranks leave out the same ones.
            for at in sorted(at for at in self._at if at <= step):
                todo += self._at.pop(at)
            return tuple(todo)

    def close(self) -> None:
        """Listen no more."""
        self._ended.set()
        self._asked.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * self._look + 1.0)

    # --- the thread ---------------------------------------------------------------------

    def _listen(self) -> None:
        number, failures = 1, 0
        while not self._ended.is_set() and failures < _FAILURES:
            try:
                number += self._look_for(number)
                failures = 0
            except RuntimeError as error:
                # Where the store is gone its rank is, and the world with it: at the end of a run, say.
                failures += 1
                log.debug("the store that the ranks met in fails: %s", error)
                self._ended.wait(self._look)
        if failures:
            log.info("the store that the ranks met in is gone: nothing is arranged any more")
        self._release(_NEVER, "")

    def _look_for(self, number: int) -> int:
        """Arrange what is asked for under *number*; how many that were.

        Raises:
            RuntimeError: The store fails.
        """
        assert self._store is not None
        self._speak(self._store, number)
        if not self._store.check([f"gate/what/{number}"]):
            if self._asked.wait(self._look):
                self._asked.clear()
            return 0
        what = self._store.get(f"gate/what/{number}").decode()
        try:
            said = self._arrange(self._store, number, what)
        except RuntimeError:
            said = _NEVER
        mine = self._mine.pop(number, None) == what
        self._release(said, what)
        if said == _NEVER:
            self._try_again(what, mine=mine)
        else:
            self._refused.pop(what, None)
        return 1

    def _try_again(self, what: str, *, mine: bool) -> None:
        self._refused[what] += 1
        again = mine and self._refused[what] <= _TRIES
        log.info("not every rank answered: %r is not arranged%s", what, ", yet" if again else "")
        if again:
            pause = _FIRST_PAUSE_SECONDS * 2.0 ** self._refused[what]
            self._again.append((self._clock() + pause, what))

    def _speak(self, store: KeyStore, number: int) -> None:
        """Write down what this rank wants, from *number* on; others may have written the same."""
        now = self._clock()
        with self._changed:
            wanted, self._wanted = self._wanted, []
        wanted += [what for due, what in self._again if due <= now and what not in wanted]
        self._again = [one for one in self._again if one[0] > now]
        for what in wanted:
            # The next free number, in one go: one that was taken and never written would stop all.
            at = number
            while store.compare_set(f"gate/what/{at}", "", what).decode() != what:
                at += 1
            self._mine[at] = what

    def _arrange(self, store: KeyStore, number: int, what: str) -> str:
        """Hold this rank, and agree with the others on a step."""
        with self._changed:
            # Before its first step a rank is in none; whoever is in one is ahead of it.
            step, self._held = self._step, True
            with suppress(ValueError):
                self._wanted.remove(what)
        here, agreed = f"gate/in/{number}", f"gate/at/{number}"
        limit = self._clock() + self._patience
        if step is not None:
            store.set(f"{here}/{self._rank}", str(step))
        if store.add(here, 1) == self._world:
            self._forget(store, number - 1)
            told = [f"{here}/{rank}" for rank in range(self._world)]
            steps = [int(store.get(key)) for key in told if store.check([key])]
            store.compare_set(agreed, "", str(max(steps)) if steps else _FIRST)
        while not store.check([agreed]):
            if self._ended.wait(self._look / 10):
                break
            if self._clock() > limit:
                # Whoever writes first is right: nobody acts on what another one gave up.
                store.compare_set(agreed, "", _NEVER)
        return store.get(agreed).decode() if store.check([agreed]) else _NEVER

    def _release(self, said: str, what: str) -> None:
        with self._changed:
            if said == _FIRST:
                self._first.append(what)
            elif said != _NEVER:
                self._at[int(said)].append(what)
            self._held = False
            self._changed.notify_all()

    def _forget(self, store: KeyStore, number: int) -> None:
        """All ranks have read what was agreed before: they are here."""
        if number < 1:
            return
        keys = [f"gate/{key}/{number}" for key in ("what", "in", "at")]
        for key in [*keys, *(f"gate/in/{number}/{rank}" for rank in range(self._world))]:
            store.delete_key(key)
