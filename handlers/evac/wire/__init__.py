"""The socket protocol as a pure core: packets in, messages out, and back.

One SEQPACKET packet is one JSON object of at most 64 KiB with a ``type``; the fds that
belong to it travel in the same packet. A request carries ``id`` (a positive integer) and
its answer repeats it as ``re``. Unknown fields are ignored, so that either end may be newer;
unknown types and wrong values are `ProtocolError`. PROTOCOL.md says the same for people
who write a client in another language.

The daemon and the clients share this package; it does no I/O. `messages` says what can be said,
`codec` how it is spelt.
"""

from evac.wire.codec import MAX_PACKET, Packet, decode, encode
from evac.wire.fields import Message
from evac.wire.messages import MESSAGES
from evac.wire.said import (
    Acquire,
    Adopt,
    AskStatus,
    Cancel,
    Done,
    Drain,
    Drill,
    HandBack,
    Hello,
    Leave,
    Mode,
    Pin,
    Register,
    Release,
    Reserve,
    Save,
    Staged,
)
from evac.wire.told import (
    Accepted,
    Adopted,
    Advice,
    Granted,
    Lent,
    Ordered,
    OrderGiven,
    Refuse,
    Registered,
    Slot,
    StandDown,
    Status,
    Turn,
    Welcome,
)

PROTOCOL = 1
# Linux refuses more than 253 fds in a packet; nothing here ever sends more than one.
MAX_FDS = 1

__all__ = [
    "MAX_FDS",
    "MAX_PACKET",
    "MESSAGES",
    "PROTOCOL",
    "Accepted",
    "Acquire",
    "Adopt",
    "Adopted",
    "Advice",
    "AskStatus",
    "Cancel",
    "Done",
    "Drain",
    "Drill",
    "Granted",
    "HandBack",
    "Hello",
    "Leave",
    "Lent",
    "Message",
    "Mode",
    "OrderGiven",
    "Ordered",
    "Packet",
    "Pin",
    "Refuse",
    "Register",
    "Registered",
    "Release",
    "Reserve",
    "Save",
    "Slot",
    "Staged",
    "StandDown",
    "Status",
    "Turn",
    "Welcome",
    "decode",
    "encode",
]
