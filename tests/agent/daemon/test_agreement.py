"""Two nodes of a job leave at different newest steps: both save parts of the same generation."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__

from evac.commit import State, survey
from evac.generation import Generation
from evac.store import open_store
from tests.agent.daemon.nodes import Node, node_at, until
from tests.services.etcd import etcd
from tests.services.process import HOST
from tests.services.skipping import or_skip

AGREED = Generation(1, 4)


@pytest.fixture
def rendezvous(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "tcpstore":
        server = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        yield f"tcpstore://{HOST}:{server.port}/evac/run"
        return
    with or_skip(), etcd(tmp_path / "etcd") as port:
        yield f"etcd://{HOST}:{port}/evac/run"


@pytest.fixture
def pair(
    tmp_path: Path, rendezvous: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., list[Node]]]:
    """Two nodes of one job, which have the same store."""
    monkeypatch.setenv("EVAC_RENDEZVOUS", rendezvous)
    with ExitStack() as ends:

        def make(*steps: tuple[int, ...]) -> list[Node]:
            nodes = []
            for rank, mine in enumerate(steps):
                node = ends.enter_context(contextmanager(node_at)(tmp_path / f"node-{rank}"))
                node.store = tmp_path / "store"
                node.start(environ={"EVAC_STATE_NODE": f"node-{rank}"})
                worker = node.workload(rank=rank, world=len(steps)).ready()
                for step in mine:
                    assert worker.do("stage", step=step) == {}
                    node.knows("job", step, rank=rank)
                nodes.append(node)
            return nodes

        yield make


async def whole(store: Path, prefix: str) -> list[Generation]:
    return [
        one.generation
        for one in await survey(open_store(f"file://{store}"), prefix)
        if one.state is State.COMPLETE
    ]


@pytest.mark.parametrize(
    ("rendezvous", "first"), [("tcpstore", 0), ("etcd", 1)], indirect=["rendezvous"]
)
async def test_who_leaves_saves_the_same_generation_whoever_was_first(
    pair: Callable[..., list[Node]], first: int
) -> None:
    nodes = pair((3, 4, 5), (3, 4))
    [prefix] = {one["unit"] for one in nodes[0].status()["workloads"]}

    for node in (nodes[first], nodes[1 - first]):
        node.drain()
    for node in nodes:
        node.event("choice.followed", generation={"incarnation": 1, "step": 4}, by="node-1")

    until("it is whole", lambda: len(list(nodes[0].store.rglob("step-4.1/*.manifest.json"))) == 2)
    assert max(await whole(nodes[0].store, prefix)) == AGREED
    for node in nodes:
        node.event("flush.finished", generation={"incarnation": 1, "step": 4})
