"""This node's memory for other nodes: what ``evac://host:port`` talks to. See PROTOCOL.md.

Nothing that is kept here is durable: it lasts as long as this daemon does.
"""

from evacd.peer.server import PeerServer, PeerSettings
from evacd.peer.serving import serving

__all__ = ["PeerServer", "PeerSettings", "serving"]
