"""Everything that may announce the end of this machine, side by side.

From settings to sources, which cloud this is, a keeper for each source that no bug in it can
stop, and one place that hears them all and knows how each of them is.
"""

from evacd.listening.ears import Ears
from evacd.listening.find import Found, find
from evacd.listening.listener import Listener
from evacd.listening.sources import independent, of_cloud

__all__ = ["Ears", "Found", "Listener", "find", "independent", "of_cloud"]
