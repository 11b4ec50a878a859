"""The experiments' rows and columns, and what one process of them is told."""

from dataclasses import dataclass

EVAC = "evac with a daemon"
EVAC_ALONE = "evac without a daemon"
DCP_THREAD = "DCP async_save thread"
DCP_PROCESS = "DCP async_save process"
SNAPSHOT = "torchsnapshot"
DLROVER = "DLRover flash memory"

STAGING, FLUSH, HUNG, FROZEN = "mid-staging", "mid-flush", "hung", "frozen"
MOMENTS = (STAGING, FLUSH, HUNG, FROZEN)

# A checkpoint every so many steps; the third one meets its end, or what comes after it does.
EVERY = 5
LAST = 3 * EVERY
# The step whose all-reduce one of two ranks does not come to.
HANGS = {HUNG: LAST + 3, FROZEN: LAST + 1}
# Tensors of the state.
PARTS = 32


@dataclass(frozen=True)
class Task:
    """What a process of an experiment is to do.

    Attributes:
        place: Folder of the system's checkpoints.
        size: Bytes of the state.
    """

    system: str
    moment: str
    place: str
    size: int
    rank: int = 0
    world: int = 1
