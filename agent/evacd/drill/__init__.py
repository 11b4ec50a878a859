"""A fire drill: the whole path with real bytes, and nobody is told to leave.

The newest common generations go to the store, in the plan's order and at full speed. They are
generations of the job like any other, and committed, so the drill leaves nothing behind that
would not be of use. Training goes on: slots are held while they are read, as in a flush. A real
order makes the drill give way at once.
"""

from evacd.drill.drills import Drills
from evacd.drill.report import Drilled, Report, compare

__all__ = ["Drilled", "Drills", "Report", "compare"]
