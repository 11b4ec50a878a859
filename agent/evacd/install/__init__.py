"""`evacd install` and `uninstall`: evacd as a service of systemd, and the way back.

What is written is remembered with its checksum, so that a file that somebody changed since is
theirs: it is neither overwritten nor removed, and the command says so.
"""

from evacd.install.carry import install, uninstall

__all__ = ["install", "uninstall"]
