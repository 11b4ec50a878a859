"""What carried the order of before a restart of the daemon, as long as that is of use."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from evacd.facts import Cancelled, Noticed, Probe, Quiet
from evacd.report.standing_notices import Heard, Key, recalled


class Before:
    """Notices of before a restart within one boot, and their order, until they are told again or called off."""

    def __init__(
        self, notices: Mapping[Key, Heard] = MappingProxyType({}), order: str | None = None
    ) -> None:
        """Begin with what was noted: *order* is an id, None where none had been given."""
        self._notices = dict(notices)
        self._order = order
        self._told_again = False

    @property
    def order(self) -> str | None:
        """Id of the order that the next one goes on with, for a notice of it was told again; else None."""
        return self._order if self._told_again else None

    @property
    def waited_for(self) -> Collection[Key]:
        """The notices that nobody has called off."""
        return self._notices.keys()

    def first_seen(self, *, default: float) -> float:
        """When the first of them was seen, in monotonic seconds; *default* where there is none."""
        return min((each.seen for each in self._notices.values()), default=default)

    def recall(self, probe: Probe) -> Probe:
        """*probe* in the light of them: a notice has no more time than it had."""
        match probe:
            case Noticed(notice) if before := self._notices.get((notice.source, notice.id)):
                self._told_again = True
                return Noticed(recalled(notice, before))
            case Cancelled(source, id):
                self._notices.pop((source, id), None)
            case Quiet(source):
                left = {key: each for key, each in self._notices.items() if key[0] != source}
                self._notices = left
        return probe

    def begin(self) -> None:
        """An order is given: the one after it goes on with none."""
        self._order = None

    def forget(self) -> None:
        """The order is withdrawn, and all that carried it."""
        self._notices.clear()
        self._order = None
