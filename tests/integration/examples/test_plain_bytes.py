"""Plain bytes: staged, killed, and back to the bit."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import evac
from integration.examples import plain_bytes
from tests.agent.daemon.nodes import Node, node_at, until
from tests.integration.examples.runs import LIMIT, end_here, process


def cut(steps: int) -> None:
    client = evac.connect("example-bytes")
    assert client.wait_connected(LIMIT)
    weights = np.zeros(1000)
    for step in range(1, steps + 1):
        weights += np.random.default_rng(step).standard_normal(1000)
        assert client.stage(weights, step, timeout=LIMIT), client.last_refusal
    end_here()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    for node in node_at(tmp_path / "node"):
        monkeypatch.setenv("EVAC_SOCKET", str(node.socket))
        yield node.start()


def whole_in_store(node: Node, step: int) -> bool:
    return any(node.store.glob(f"*/*/step-{step}.*/__0.manifest.json"))


def test_the_example_goes_on_where_it_was_killed(node: Node) -> None:
    killed = process(cut, 5)
    killed.join(LIMIT)
    expected = sum(np.random.default_rng(step).standard_normal(1000) for step in range(1, 10))

    first, weights = plain_bytes.train(9)

    assert first == 6
    assert weights.tobytes() == np.asarray(expected).tobytes()


def test_it_comes_back_from_the_store_on_a_new_machine(node: Node, tmp_path: Path) -> None:
    killed = process(cut, 3)
    killed.join(LIMIT)
    until("the daemon has saved it", lambda: whole_in_store(node, 3))
    for other in node_at(tmp_path / "other"):
        other.start("--store", f"file://{node.store}")
        with evac.connect("example-bytes", socket=other.socket) as client:
            assert client.wait_connected(LIMIT)
            kept = client.newest()

    assert kept is not None
    assert kept.step == 3
    assert kept.where == f"file://{node.store}"
    assert repr(kept) == f"Kept(step=3, where='file://{node.store}')"
    expected = sum(np.random.default_rng(step).standard_normal(1000) for step in range(1, 4))
    assert kept.data == np.asarray(expected).tobytes()


def test_pieces_lie_end_to_end_and_may_grow(node: Node) -> None:
    with evac.connect("pieces") as client:
        assert client.wait_connected(LIMIT)
        assert client.newest() is None
        assert client.stage([b"one", bytearray(b"two")], 1, timeout=LIMIT), client.last_refusal
        assert client.stage(b"x" * 100_000, 2, timeout=LIMIT), client.last_refusal
        kept = client.newest()

    assert kept is not None
    assert (kept.step, kept.data) == (2, b"x" * 100_000)


def test_without_a_daemon_nothing_is_staged_and_nothing_raised() -> None:
    with evac.connect("alone", socket="/nowhere/evacd.sock") as client:
        assert not client.stage(b"state", 1)
        assert "nowhere" in client.last_refusal
        with pytest.raises(evac.NotConnected):
            client.newest()
