"""Everything that evac raises, split by what the caller can do about it.

EvacError
├── ConfigError            the person who configures: a value is wrong, and where
├── ProtocolError          the other end of a socket sent something that is not the protocol
├── Refused                the daemon understood and said no, with its reason
├── NotConnected           there is no daemon to talk to right now
├── SegmentError           a slot's header is not what its owner said
├── StoreError             a store failed
│   ├── StoreUnavailable   worth another try while time is left
│   └── StoreRejected      another try cannot help
│       └── StoreMissing   there is no such object
└── GenerationError        a generation cannot be used, and why
"""


class EvacError(Exception):
    """The root of all that evac raises on purpose."""


class ConfigError(EvacError):
    """A setting is unknown or wrong.

    Attributes:
        where: The place a person can go to: ``evac.toml:12``, ``EVAC_STORE``, ``--store``.
        key: The setting's dotted name.
        expected: What would have been right.
    """

    def __init__(self, where: str, key: str, expected: str) -> None:
        super().__init__(f"{where}: {key}: expected {expected}")
        self.where = where
        self.key = key
        self.expected = expected


class ProtocolError(EvacError):
    """A packet that is not the protocol; the sender is told *reason* and dropped."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Refused(EvacError):
    """The daemon said no; *reason* is written for the person who reads the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotConnected(EvacError):
    """No daemon answers on the socket; the client keeps trying by itself."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class SegmentError(EvacError):
    """A slot's header does not hold what its owner announced."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StoreError(EvacError):
    """A store failed to keep, find or forget an object."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class StoreUnavailable(StoreError):
    """Worth another try while time is left: throttled, reset, timed out."""


class StoreRejected(StoreError):
    """Another try cannot help: no such bucket, no permission, disk full."""


class StoreMissing(StoreRejected):
    """There is no object under this key."""


class GenerationError(EvacError):
    """A generation is torn, mixed, corrupt or missing; *reason* says which."""

    def __init__(self, generation: str, reason: str) -> None:
        super().__init__(f"{generation}: {reason}")
        self.generation = generation
        self.reason = reason
