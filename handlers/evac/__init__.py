"""evac: get staged GPU state out of a machine that is about to be taken away.

`connect` is where a workload begins; everything here needs the standard library only.
"""

from evac._callbacks import RunningOrder
from evac._memory import SlotMemory
from evac._turns import TurnBudget
from evac.client import Client, connect
from evac.errors import (
    ConfigError,
    EvacError,
    GenerationError,
    NotConnected,
    ProtocolError,
    Refused,
    SegmentError,
    StoreError,
    StoreMissing,
    StoreRejected,
    StoreUnavailable,
)
from evac.wire import Advice, Mode

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "Client",
    "ConfigError",
    "EvacError",
    "GenerationError",
    "Mode",
    "NotConnected",
    "ProtocolError",
    "Refused",
    "RunningOrder",
    "SegmentError",
    "SlotMemory",
    "StoreError",
    "StoreMissing",
    "StoreRejected",
    "StoreUnavailable",
    "TurnBudget",
    "__version__",
    "connect",
]
