"""The name server is gone in mid-flush: a row of the table of faults.

A flush in a process that asks a name server of ours, and what becomes of it when that knows the store's name no
more from some call on. What is connected goes on; what has to connect anew says why it cannot; and when the name
is back, the very same flush goes through.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from evac.commit import verify
from evac.store import Store
from tests.handlers.commit.made import PREFIX
from tests.handlers.store.driven import Driven, driven, served
from tests.handlers.store.faulty import KINDS, fresh
from tests.handlers.store.flushing import BODY, GENERATION, PART
from tests.handlers.store.named import opened
from tests.handlers.store.test_faults import NIGHTLY
from tests.handlers.store.test_peer import TOKEN
from tests.services.names import NAME, Gone, Names, asking, names
from tests.services.process import HOST
from tests.services.relay import Relay, relay
from tests.services.skipping import or_skip

REASON = "its host name cannot be resolved"
SMALL = PART // 2
# moto ends every connection with its answer, and SeaweedFS takes no small parts: there a body goes in one request.
NBYTES = {"s3": SMALL, "gs": len(BODY), "az": len(BODY), "evac": len(BODY)}


@dataclass(frozen=True)
class Flushing:
    """The process, what it asks, and where it is connected."""

    kind: str
    there: Driven
    names: Names
    relay: Relay
    port: int

    def calls(self) -> int:
        """How many calls of the store a flush has."""
        return self.there.calls(fresh(), NBYTES[self.kind])

    def store(self, mark: str) -> Store:
        """The same store, without a name."""
        return opened(self.kind, f"http://{HOST}:{self.port}", mark)


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
    with served(kind, request) as (port, environment):
        for name, value in {**environment, "EVAC_PEER_TOKEN_FILE": str(token)}.items():
            monkeypatch.setenv(name, value)
        with (
            or_skip(),
            names() as server,
            relay(port) as between,
            driven(kind, f"http://{NAME}:{between.port}", before=asking(server, tmp_path)) as there,
        ):
            yield Flushing(kind, there, server, between, port)


async def test_a_name_that_is_gone_stops_nothing_that_is_connected_and_is_told_by_what_is_not(
    flushing: Flushing,
) -> None:
    calls, nbytes = flushing.calls(), NBYTES[flushing.kind]

    # One connection is enough for small bodies, and is there after the first call.
    def go(number: int) -> str:
        flushing.names.gone = Gone.NXDOMAIN if number else None
        return "go"

    assert flushing.there.flush(mark := fresh(), SMALL, go) is None
    assert await verify(flushing.store(mark), PREFIX, GENERATION) == ()

    hows = (Gone.NXDOMAIN, Gone.SERVFAIL, *((Gone.SILENCE,) if NIGHTLY else ()))
    for how in hows:
        for call in range(calls) if NIGHTLY else range(2 * hows.index(how), calls, 4):

            def cut(number: int, call: int = call, how: Gone = how) -> str:
                flushing.names.gone = how if number >= call else None
                if number == call:
                    flushing.relay.cut()
                return "cut" if number == call else "go"

            told = flushing.there.flush(mark := fresh(), nbytes, cut)

            assert told is not None, (how, call)
            assert told["reason"] == REASON, (how, call)
            assert told["kind"] in ("StoreUnavailable", "PeerGone")
            flushing.names.gone = None
            assert flushing.there.flush(mark, nbytes, lambda _: "go") is None, (how, call)
            assert await verify(flushing.store(mark), PREFIX, GENERATION) == ()
