"""What a job's own user may ask without being on board: a preStop hook, a launcher."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from evac.generation import Generation
from evac.wire import Accepted, Message, Pin, Refuse, Save
from evacd.clock import Clock
from evacd.workloads.agreement import agree, disagree
from evacd.workloads.cgroup import Stray
from evacd.workloads.peer import Peer
from evacd.workloads.policy import rights_of
from evacd.workloads.roster import Roster
from evacd.workloads.settings import BoardSettings
from evacd.workloads.staging import Staging

# Of a unit, within so many seconds, asked for by a uid.
SaveOwn: TypeAlias = Callable[[str, float, int], Message]
# Until no crash takes back what was decided; not for long.
Written: TypeAlias = Callable[[], Awaitable[None]]


class Outside:
    """Answers them; only whose user has a process of the job on board, or had one, may ask."""

    def __init__(
        self,
        settings: BoardSettings,
        *,
        roster: Roster,
        staging: Staging,
        clock: Clock,
        save: SaveOwn | None,
        awaits: Callable[[str, int], bool],
    ) -> None:
        """Wire it up.

        Args:
            awaits: Whether a user's memory of a unit is still missing after a restart.
        """
        self._settings = settings
        self._roster = roster
        self._staging = staging
        self._clock = clock
        self._save = save
        self._awaits = awaits

    def save(self, peer: Peer, message: Save) -> Message:
        """Save what the job has staged here."""
        if not isinstance(peer.pod, Stray):
            rights = rights_of(peer.user, peer.uid, self._settings, pod=peer.pod)
            unit = f"{rights.owner}/{message.job}"
            if self._is_of(peer, unit) or self._awaits(unit, peer.uid):
                asked = self._save(unit, message.seconds, peer.uid) if self._save else None
                return asked or Refuse("not here")
        return _not_aboard(message.job, peer)

    def pin(self, peer: Peer, message: Pin) -> Message:
        """Other nodes of the job leave with that generation, or do not after all."""
        unit = message.prefix
        if isinstance(peer.pod, Stray) or not self._is_of(peer, unit):
            return _not_aboard(unit, peer)
        generation = Generation(message.incarnation, message.step)
        if message.keep:
            until = self._clock.monotonic() + self._settings.orphan_seconds
            if (wrong := agree(self._roster, unit, generation, until=until)) is not None:
                return Refuse(wrong.reason)
        else:
            disagree(self._roster, unit, generation)
        self._staging.note_job(unit)
        self._staging.collect()
        return Accepted()

    def _is_of(self, peer: Peer, unit: str) -> bool:
        job = self._roster.jobs.get(unit)
        return job is not None and any(m.process.uid == peer.uid for m in job.members)


def _not_aboard(job: str, peer: Peer) -> Refuse:
    who = peer.user or f"uid {peer.uid}"
    return Refuse(f"no job {job} of user {who} is on board of this node")
