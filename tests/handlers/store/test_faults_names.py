"""The name server is gone in mid-flush: a row of the table of faults.

A flush in a process that asks a name server of ours, and what becomes of it when that knows the store's name no
more from some call on. What is connected goes on; what has to connect anew says why it cannot; and when the name
is back, the very same flush goes through.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from evac.commit import verify
from evac.store import Store
from tests.handlers.commit.made import PREFIX
from tests.handlers.store.faulty import KINDS, fresh
from tests.handlers.store.flushing import BODY, GENERATION, PART
from tests.handlers.store.named import CALL, opened
from tests.handlers.store.test_faults import NIGHTLY
from tests.handlers.store.test_peer import TOKEN, running
from tests.services.names import NAME, Gone, Names, asking, names
from tests.services.process import HOST, Unavailable
from tests.services.relay import Relay, relay

ROOT = Path(__file__).parents[3]
REASON = "its host name cannot be resolved"
SMALL = PART // 2
# moto ends every connection with its answer, and SeaweedFS takes no small parts: there a body goes in one request.
NBYTES = {"s3": SMALL, "gs": len(BODY), "az": len(BODY), "evac": len(BODY)}


@dataclass(frozen=True)
class Flushing:
    """The process, what it asks, and where it is connected."""

    kind: str
    process: "subprocess.Popen[str]"
    names: Names
    relay: Relay
    port: int

    def flush(self, mark: str, nbytes: int, before: Callable[[int], str]) -> dict[str, str] | None:
        """What one ends with; *before* each call of the store, by its number, says ``go`` or ``cut``."""
        self._say(f"{mark} {nbytes}")
        number = 0
        while (said := self._heard()) == CALL:
            self._say(before(number))
            number += 1
        told: dict[str, str] | None = json.loads(said)
        return told

    def calls(self) -> int:
        """How many a flush makes."""
        seen = list[int]()

        def go(number: int) -> str:
            seen.append(number)
            return "go"

        assert self.flush(fresh(), NBYTES[self.kind], go) is None
        return len(seen)

    def store(self, mark: str) -> Store:
        """The same store, without a name."""
        return opened(self.kind, f"http://{HOST}:{self.port}", mark)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def _heard(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "it has ended"
        return line


@pytest.fixture(params=(*KINDS, "evac"))
def flushing(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> Iterator[Flushing]:
    kind = request.param
    record_property("faults", ("name gone", kind))
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    for port, environment in _served(kind, request):
        for name, value in {**environment, "EVAC_PEER_TOKEN_FILE": str(token)}.items():
            monkeypatch.setenv(name, value)
        try:
            with names() as server, relay(port) as between:
                program = (
                    "-m",
                    "tests.handlers.store.named",
                    kind,
                    f"http://{NAME}:{between.port}",
                )
                command = [*asking(server, tmp_path), sys.executable, *program]
                with subprocess.Popen(
                    command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                ) as process:
                    yield Flushing(kind, process, server, between, port)
                    assert process.stdin is not None
                    process.stdin.close()
        except Unavailable as why:
            pytest.skip(str(why))


def _served(kind: str, request: pytest.FixtureRequest) -> Iterator[tuple[int, dict[str, str]]]:
    """The port of a real server of that kind, and what opens it."""
    if kind == "evac":
        with running() as peer:
            yield peer.port, {}
        return
    server = request.getfixturevalue({"s3": "seaweed", "gs": "fake_gcs", "az": "azurite"}[kind])
    yield server.port, dict(getattr(server, "environment", {}))


async def test_a_name_that_is_gone_stops_nothing_that_is_connected_and_is_told_by_what_is_not(
    flushing: Flushing,
) -> None:
    calls, nbytes = flushing.calls(), NBYTES[flushing.kind]

    # One connection is enough for small bodies, and is there after the first call.
    def go(number: int) -> str:
        flushing.names.gone = Gone.NXDOMAIN if number else None
        return "go"

    assert flushing.flush(mark := fresh(), SMALL, go) is None
    assert await verify(flushing.store(mark), PREFIX, GENERATION) == ()

    hows = (Gone.NXDOMAIN, Gone.SERVFAIL, *((Gone.SILENCE,) if NIGHTLY else ()))
    for how in hows:
        for call in range(calls) if NIGHTLY else range(2 * hows.index(how), calls, 4):

            def cut(number: int, call: int = call, how: Gone = how) -> str:
                flushing.names.gone = how if number >= call else None
                if number == call:
                    flushing.relay.cut()
                return "cut" if number == call else "go"

            told = flushing.flush(mark := fresh(), nbytes, cut)

            assert told is not None, (how, call)
            assert told["reason"] == REASON, (how, call)
            assert told["kind"] in ("StoreUnavailable", "PeerGone")
            flushing.names.gone = None
            assert flushing.flush(mark, nbytes, lambda _: "go") is None, (how, call)
            assert await verify(flushing.store(mark), PREFIX, GENERATION) == ()
