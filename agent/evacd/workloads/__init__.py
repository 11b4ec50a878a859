"""Who is on board: registered processes, their memory, and the sockets between.

::

    sockets -> link -> session -> desk -> roster, policy, budget (pure: decide)
                                   |  -> aboard, deaths (who is reached, who has ended)
                                staging -> regions -> memory, checksums

`Board` is all that the daemon and the flush see of it.
"""

from evacd.workloads.board import Board
from evacd.workloads.happenings import Denied, Died, Dropped, Happening, Joined, Left, StagedOne
from evacd.workloads.keeping import Keeper
from evacd.workloads.part import Part
from evacd.workloads.places import prepare_in
from evacd.workloads.settings import BoardSettings, UserLimits
from evacd.workloads.turns import TurnResult

__all__ = [
    "Board",
    "BoardSettings",
    "Denied",
    "Died",
    "Dropped",
    "Happening",
    "Joined",
    "Keeper",
    "Left",
    "Part",
    "StagedOne",
    "TurnResult",
    "UserLimits",
    "prepare_in",
]
