"""What only the daemon raises; the rest is `evac.errors`."""

from evac.errors import EvacError


class AlreadyRunning(EvacError):
    """Another daemon answers on this socket, or has this state."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: another evacd is running here")
        self.path = path


class StateError(EvacError):
    """A directory or file that the daemon needs cannot be used."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
