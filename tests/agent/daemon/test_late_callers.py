"""Callback workloads that come only after evacd was started again amid an order: each is asked, in what time is left."""

from pathlib import Path

from evac import incident
from evac.incident import Ending
from tests.agent.daemon.nodes import Node, until
from tests.agent.daemon.test_restart import order


def kept(node: Node) -> list[int]:
    """Bytes of who is safe, once nothing is left to do."""
    status = node.status()
    if not status["order"]["settled"]:
        return []
    return [one["nbytes"] for one in status["outcomes"] if one["kept"]]


def reported(node: Node) -> list[tuple[Ending, int]]:
    (found,) = incident.load(node.journal, last=1)
    return [(unit.ending, unit.nbytes) for unit in incident.summary(found).units]


def test_each_process_that_comes_after_the_restart_is_asked(node: Node, tmp_path: Path) -> None:
    node.start()
    node.drain(600.0)
    before = order(node)
    node.kill()
    node.start()
    assert order(node)["id"] == before["id"]

    for rank in range(2):
        file = tmp_path / f"index-{rank}"
        node.workload(
            "index", mode="callback", need_seconds=2.0, rank=rank, world=2, file=str(file), nbytes=1000
        ).do("connect")  # fmt: skip
        # One after the other, as they find the daemon: all that are there are safe by then.
        nbytes = 1000 * (rank + 1)
        until(f"rank {rank} is safe", lambda nbytes=nbytes: kept(node) == [nbytes])  # type: ignore[misc] # as it is now
        assert file.stat().st_size == 1000

    until("that is on record", lambda: reported(node) == [(Ending.KEPT, 2000)])
