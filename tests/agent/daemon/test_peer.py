"""Two nodes: one's bytes go into the other's memory, come back from there, and are never called durable."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from evac.commit import State, survey, verify
from evac.generation import Generation
from evac.store import open_store
from tests.agent.daemon.nodes import Node, node_at, until
from tests.agent.daemon.worker import body_of

MEBI = 1 << 20
TOKEN = "00112233445566778899aabbccddeeff"


@dataclass(frozen=True)
class Pair:
    """A node that is about to leave, and one that keeps its bytes."""

    here: Node
    there: Node
    url: str
    environ: dict[str, str]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with ExitStack() as nodes:
        here = nodes.enter_context(contextmanager(node_at)(tmp_path / "here"))
        there = nodes.enter_context(contextmanager(node_at)(tmp_path / "there"))
        environ = {"EVAC_PEER_TOKEN_FILE": str(token)}
        there.start("--peer-listen", address, "--peer-budget", "256MiB", environ=environ)
        yield Pair(here, there, f"evac://{address}", environ)


def evac(pair: Pair, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "evac", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, **pair.environ},
    ).stdout


async def test_what_the_durable_store_does_not_take_a_peer_keeps(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair.here, pair.there
    here.store.write_text("no folder: nothing can be put here")
    here.start("--store", pair.url, environ=pair.environ)
    here.staged(5, nbytes=20 * MEBI + 17)
    [prefix] = {one["unit"] for one in here.status()["workloads"]}

    here.drain()
    outcomes = here.settled()

    assert outcomes[prefix]["kept"]
    assert not outcomes[prefix]["durable"]
    [slot] = [s for s in here.status()["workloads"][0]["slots"] if s["state"] == "complete"]
    assert not slot["durable"]
    # It has gone; what it staged has not.
    here.close()
    monkeypatch.setenv("EVAC_PEER_TOKEN_FILE", pair.environ["EVAC_PEER_TOKEN_FILE"])
    store = open_store(pair.url)
    [found] = await survey(store, prefix)
    assert (found.generation, found.state) == (Generation(1, 5), State.COMPLETE)
    assert await verify(store, prefix, Generation(1, 5)) == ()
    body = await store.get(f"{prefix}/step-5.1/part0.bin")
    assert body == body_of(0, 5, 20 * MEBI + 17)
    # And people see it: at the peer, and through it.
    held = there.status()["peer"]
    assert [job["prefix"] for job in held["jobs"] if job["generations"]] == [prefix]
    assert f"({prefix} " in evac(pair, "status", "--socket", str(there.socket))
    assert "step-5.1    complete" in evac(pair, "ls", pair.url)
    assert json.loads(evac(pair, "verify", pair.url, "--json"))["jobs"]


async def test_a_job_says_where_its_nodes_keep_bytes_and_a_node_never_puts_any_into_itself(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair.here, pair.there
    with (
        socket.create_server(("127.0.0.1", 0)) as free,
        socket.create_server(("127.0.0.1", 0)) as no,
    ):
        own, dead = (f"127.0.0.1:{one.getsockname()[1]}" for one in (free, no))
    monkeypatch.setenv("EVAC_PEER_TOKEN_FILE", pair.environ["EVAC_PEER_TOKEN_FILE"])
    monkeypatch.setenv("EVAC_PEERS", f"{own},{dead},{pair.url.removeprefix('evac://')}")
    here.store.write_text("no folder: nothing can be put here")
    here.start("--store", "evac://job", "--peer-listen", own, environ=pair.environ)
    here.staged(7, "training", nbytes=3 * MEBI)
    [prefix] = {one["unit"] for one in here.status()["workloads"]}

    here.drain()
    outcomes = here.settled()

    assert outcomes[prefix]["kept"]
    assert not outcomes[prefix]["durable"]
    assert here.status()["peer"]["jobs"] == []
    here.close()
    # A successor finds it by what its environment says, whichever node has it.
    store = open_store("evac://job")
    [found] = await survey(store, prefix)
    assert (found.generation, found.state) == (Generation(1, 7), State.COMPLETE)
    held = [job["prefix"] for job in there.status()["peer"]["jobs"] if job["generations"]]
    assert held == [prefix]


def test_a_job_that_names_no_peers_is_not_sent_there(node_alone: Node) -> None:
    node_alone.start("--store", "evac://job")
    node_alone.staged(5)

    node_alone.drain()

    assert all(outcome["durable"] for outcome in node_alone.settled().values())


@pytest.fixture
def node_alone(tmp_path: Path) -> Iterator[Node]:
    yield from node_at(tmp_path / "alone")


async def test_a_node_that_leaves_takes_nothing_for_others(pair: Pair) -> None:
    pair.there.staged(1)
    pair.there.drain()
    until("it leaves", lambda: pair.there.status()["peer"]["leaving"])
    pair.here.store.write_text("no folder")
    pair.here.start("--store", pair.url, environ=pair.environ)
    pair.here.staged(5)
    [prefix] = {one["unit"] for one in pair.here.status()["workloads"]}

    pair.here.drain(5.0)

    outcome = pair.here.settled()[prefix]
    assert not outcome["kept"]
    assert pair.there.status()["peer"]["jobs"] == []


def test_peers_alone_are_no_store(tmp_path: Path) -> None:
    for command in ("run", "check"):
        done = subprocess.run(
            [sys.executable, "-m", "evacd", command, "--store", "evac://127.0.0.1:9", "--cloud", "none"],
            capture_output=True,
            text=True,
            timeout=60,
        )  # fmt: skip
        assert done.returncode != 0
        assert "outlives this machine" in done.stderr or "only peers' memory" in done.stdout


@pytest.mark.parametrize(
    ("listen", "content", "said"),
    [
        ("0.0.0.0:0", None, "a file with a token"),
        ("127.0.0.1:0", "short", "16 bytes or more"),
    ],
)
def test_nobody_is_let_in_without_a_good_token(
    tmp_path: Path, listen: str, content: str | None, said: str
) -> None:
    token = tmp_path / "token"
    flags = ["--peer-listen", listen, "--state-dir", str(tmp_path), "--cloud", "none"]
    if content is not None:
        token.write_text(content)
        flags += ["--peer-token-file", str(token)]
    done = subprocess.run(
        [sys.executable, "-m", "evacd", "run", "--store", f"file://{tmp_path}/s", *flags],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_told_and_stops_nothing(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        contextmanager(node_at)(tmp_path / "node") as node,
    ):
        node.start("--peer-listen", f"127.0.0.1:{taken.getsockname()[1]}")

        assert node.status()["peer"] == {"reason": "Address already in use"}
        node.staged(5)
        node.drain()
        assert all(outcome["kept"] for outcome in node.settled().values())
