"""Who lives? Each agent shows a counter that rises, and looks at those of a few others. Pure.

No clocks of two machines are compared: silent is whose counter has not changed for so long on the
watcher's own clock. Each watches the next ones in a ring of all, so that the work does not grow
with their number; where one of them is silent, it may be a whole rack: then it looks at all that
follow. A watcher that was stopped itself begins to count anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from evac.rendezvous.state import State

_WATCHED, _MOST_WATCHED = 3, 256


@dataclass(frozen=True)
class Tempo:
    """Seconds between two signs of life, and without one until an agent counts as gone."""

    beat_seconds: float = 5.0
    dead_seconds: float = 15.0


class Pulses:
    """One agent's own pulse, and what it makes of the others'."""

    def __init__(self, me: str, beat_seconds: float, dead_seconds: float) -> None:
        self.next = 0.0
        self._me = me
        self._beat_seconds = beat_seconds
        self._dead_seconds = dead_seconds
        self._number = 0
        self._last = 0.0
        self._seen: dict[str, tuple[bytes | None, float]] = {}
        # Somebody was silent for longer than from one beat to the next: until then all are looked at.
        self._worried_until = 0.0

    def anew(self) -> None:
        """The store was lost or is another: whoever is silent may have had no chance."""
        self._seen.clear()
        self._worried_until = 0.0
        self.next = 0.0

    def back(self, away: float) -> None:
        """The store answers again after *away* seconds: less than from one beat to the next kept nobody silent.

        A proxy may break off each wait after some seconds, all day long.
        """
        if away >= self._beat_seconds:
            self.anew()

    def beat(self, now: float) -> bytes:
        """What to show at *now*; the next one is due `beat_seconds` later."""
        if self._number and now - self._last > 2 * self._beat_seconds:
            self._seen.clear()
        self._last, self.next = now, now + self._beat_seconds
        self._number += 1
        return b"%d" % self._number

    def watched(self, state: State) -> list[str]:
        """Whose pulse to look at: the next ones after this agent, round the ring; many after a silence."""
        forming = state.forming.agents if state.forming else ()
        alive = {agent.id for agent in (*state.survivors, *state.leavers, *forming, *state.waiting)}
        ring = sorted(alive - {self._me})
        after = [one for one in ring if one > self._me]
        most = _MOST_WATCHED if self._last < self._worried_until else _WATCHED
        return (after + [one for one in ring if one < self._me])[:most]

    def silent(self, found: Mapping[str, bytes | None], now: float) -> list[str]:
        """Who of these has been silent for too long."""
        self._seen = {one: seen for one, seen in self._seen.items() if one in found}
        gone: list[str] = []
        for agent, value in found.items():
            before = self._seen.get(agent)
            if before is None or before[0] != value:
                self._seen[agent] = (value, now)
            elif now - before[1] >= self._dead_seconds:
                gone.append(agent)
                del self._seen[agent]
        late = 1.5 * self._beat_seconds
        if gone or any(now - at > late for _, at in self._seen.values()):
            self._worried_until = now + 2 * self._dead_seconds
        return gone
