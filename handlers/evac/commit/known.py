"""What earlier looks at a job's generations have found, so that no manifest is read twice. Pure.

Quiet time looks after each generation that it has written, for as long as the job runs: without this it
would read the manifests of all ranks of all generations that are kept, each time.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from evac.commit.judge import GenerationStatus, State
from evac.generation import Generation


@dataclass
class Known:
    """Of one job in one store.

    A manifest is written once and never over (`put_manifest`), so the same names and sizes in a folder amount to
    the same as before. Only what was complete is remembered: all else still changes, or is looked at for
    what is wrong with it.
    """

    _found: dict[tuple[Generation, str], tuple[Mapping[str, int], GenerationStatus]] = field(
        default_factory=dict
    )

    def get(
        self, generation: Generation, kind: str, files: Mapping[str, int]
    ) -> GenerationStatus | None:
        """What that came to, where these are the names and sizes that it came from."""
        before = self._found.get((generation, kind))
        return before[1] if before is not None and before[0] == files else None

    def note(self, status: GenerationStatus, files: Mapping[str, int]) -> None:
        """This is what came of a look at *files*."""
        if status.state is State.COMPLETE:
            self._found[status.generation, status.kind] = dict(files), status

    def only(self, generations: Collection[Generation]) -> None:
        """The others are there no more; should one come again, it is another."""
        for key in [key for key in self._found if key[0] not in generations]:
            del self._found[key]
