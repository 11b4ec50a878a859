"""What a person reads of a daemon that is not there: once per outage, with what to do about it."""

import errno
import logging

log = logging.getLogger("evac")


class Outages:
    """One warning when it begins; the tries that follow are quiet.

    Args:
        quiet: Somebody else says that there never was a daemon; to lose one is news all the same.
    """

    def __init__(self, path: str, *, quiet: bool = False) -> None:
        self._path = path
        self._quiet = quiet
        self._told = False
        self._said = False

    def tell(self, reason: str, *, was_connected: bool) -> None:
        """Another try has failed, or the connection was lost."""
        if self._told:
            return
        self._told = True
        self._said = was_connected or not self._quiet
        if was_connected:
            log.warning("lost evacd at %s: running without evacuation; %s", self._path, reason)
        elif not self._quiet:
            log.warning("no evacd at %s: running without evacuation; %s", self._path, reason)

    def over(self, node: str, prefix: str) -> None:
        """The daemon is there: the next outage is news again, and the end of one that was told."""
        level = logging.WARNING if self._said else logging.INFO
        log.log(level, "on board with evacd on %s as %s", node or "this node", prefix)
        self._told = self._said = False


def cure(error: OSError) -> str:
    """What can be done about a socket that cannot be connected to."""
    match error.errno:
        case errno.ENOENT:
            return "no such socket; is evacd running, and its directory mounted in this container?"
        case errno.ECONNREFUSED:
            return "nobody listens on the socket; is evacd running?"
        case errno.EACCES | errno.EPERM:
            return "permission denied; may this user write to the socket?"
        case _:
            return error.strerror or str(error)
