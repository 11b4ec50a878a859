"""What the service manager does not take at once is told again, in the same order."""

import os
import socket
from pathlib import Path

from evacd.report.fdstore import SystemdFds

LIMIT = 60.0


def test_what_could_not_be_sent_is_sent_later_and_in_order(tmp_path: Path) -> None:
    address = tmp_path / "notify"
    fds = SystemdFds(str(address))
    fds.push("m1", 0)
    fds.remove("m1")
    fds.push("m2", 0)
    assert fds.waiting

    # Only now somebody listens.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(LIMIT)
        manager.bind(str(address))
        words = []
        for _ in range(3):
            word, given, _, _ = socket.recv_fds(manager, 4096, 4)
            words.append(word.decode().splitlines()[:2])
            for fd in given:
                os.close(fd)
        assert words == [
            ["FDSTORE=1", "FDNAME=m1"],
            ["FDSTOREREMOVE=1", "FDNAME=m1"],
            ["FDSTORE=1", "FDNAME=m2"],
        ]


def test_a_stop_waits_for_nobody_who_is_not_there(tmp_path: Path) -> None:
    fds = SystemdFds(str(tmp_path / "notify"))
    fds.push("m1", 0)
    fds.stop()
    assert fds.waiting == 0
