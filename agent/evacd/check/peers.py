"""Whether this node may keep other nodes' bytes: who could open its memory."""

import stat
from ipaddress import ip_address

from evac.errors import ConfigError
from evacd.check.findings import Finding, Verdict
from evacd.config import Config
from evacd.opening import open_peer, peer_address

NAME = "peer"


def check_peer(config: Config) -> Finding:
    """What other nodes may do here, and with what."""
    try:
        settings = open_peer(config)
    except ConfigError as error:
        return Finding(NAME, Verdict.FAIL, f"listen {config.peer.listen}", f"give {error.expected}")
    if settings is None:
        return Finding(NAME, Verdict.OK, "keeps nothing for other nodes: none is wanted")
    about = f"keeps up to {settings.budget / 1e9:.1f} GB for other nodes on {config.peer.listen}"
    path = config.peer.token_file
    if path is None:
        host, _ = peer_address(config.peer.listen)
        assert ip_address(host).is_loopback
        return Finding(NAME, Verdict.WARN, f"{about}, and asks nobody on this machine for a token")
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        return Finding(
            NAME,
            Verdict.WARN,
            f"{about}; every user of this machine can read or change {path}",
            "chmod o= it, unless all of them may read all jobs' staged state",
        )
    return Finding(NAME, Verdict.OK, about)
