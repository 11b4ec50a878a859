"""Every message; PROTOCOL.md says the same in words."""

from collections.abc import Mapping

from evac.wire import said, told
from evac.wire.fields import Message

# What may be said to the daemon, and what it says.
SAID: tuple[type[Message], ...] = (
    said.Hello,
    said.Register,
    said.Reserve,
    said.Acquire,
    said.Staged,
    said.Release,
    said.HandBack,
    said.Adopt,
    said.Done,
    said.Leave,
    said.AskStatus,
    said.Save,
    said.Pin,
    said.Drain,
    said.Cancel,
    said.Drill,
)
TOLD: tuple[type[Message], ...] = (
    told.Welcome,
    told.Registered,
    told.Slot,
    told.Granted,
    told.Lent,
    told.Adopted,
    told.Accepted,
    told.Ordered,
    told.Refuse,
    told.OrderGiven,
    told.Advice,
    told.Turn,
    told.StandDown,
    told.Status,
)
MESSAGES: Mapping[str, type[Message]] = {kind.type: kind for kind in (*SAID, *TOLD)}
