"""Quiet time: generations trickle to the durable store while nobody is in a hurry.

::

    staged -> choice (pure: whose turn is it) -> Trickle -> slow stores -> the flush's own Saver
                                                    |
                     an order's flush -> GiveWay ---+  goes on at full speed, or is cancelled

So the newest durable generation is of bounded age, and a notice finds its first upload half
done. `Ages` says how old what is safe has become.
"""

from evacd.quiet.ages import Ages
from evacd.quiet.slow import Seen
from evacd.quiet.trickle import Trickle
from evacd.quiet.way import GiveWay, Moving

__all__ = ["Ages", "GiveWay", "Moving", "Seen", "Trickle"]
