"""The table of state x kill: how training is spread, and where in a step it is killed."""

from types import MappingProxyType

ONE, DDP, FSDP = "one rank", "DDP", "FSDP2"
WORLDS = MappingProxyType({ONE: 1, DDP: 2, FSDP: 2})
FORWARD, BACKWARD, COLLECTIVE = "forward", "backward", "collective"
# Amid the copy into a slot; amid this process's own commit.
STAGING, FLUSH = "staging", "flush"
# In the step after one that was staged with an evacd that was itself killed, and came back.
BACK = "evacd back"
KILLS = (FORWARD, BACKWARD, COLLECTIVE, STAGING, FLUSH, BACK)
# One rank alone has no collective.
CELLS = tuple(
    (state, kill) for state in WORLDS for kill in KILLS if (state, kill) != (ONE, COLLECTIVE)
)
# At full speed, wherever it is by then: after an evacd that was killed amid a flush, and came back; and
# where what was measured says when to stage, and not each step.
AMID, CLOCK = "evacd amid flush", "by the clock"
MOVING = (AMID, CLOCK)
# The others at night.
FIRST = (DDP, AMID), (DDP, CLOCK)
