"""The wall clock steps in mid-flush: a row of the table of faults.

A flush in a process whose time of day is stepped by hours before some call, and stays so. Where requests are signed with
the time (S3; Azure's emulator does not look) the store refuses them until the clock is right again, and that is
worth another try: whoever keeps a clock steps it back. Everywhere else nothing is noticed.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from evac.commit import verify
from evac.errors import StoreUnavailable
from evac.store import Store, answers
from tests.handlers.commit.made import PREFIX
from tests.handlers.store.driven import Driven, driven, served
from tests.handlers.store.faulty import KINDS, fresh
from tests.handlers.store.flushing import GENERATION
from tests.handlers.store.named import opened
from tests.handlers.store.test_faults import NIGHTLY
from tests.handlers.store.test_faults_names import NBYTES
from tests.handlers.store.test_peer import TOKEN
from tests.services.process import HOST
from tests.services.skipping import or_skip
from tests.services.wall import Wall, wall

HOURS = 7 * 3600
SIGNED = ("s3",)


@dataclass(frozen=True)
class Clocked:
    """The process, and its clock."""

    kind: str
    there: Driven
    clock: Wall
    endpoint: str

    def store(self, mark: str) -> Store:
        """The same store, by the machine's clock."""
        return opened(self.kind, self.endpoint, mark)


@pytest.fixture(params=(*KINDS, "evac"))
def clocked(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> Iterator[Clocked]:
    kind = request.param
    record_property("faults", ("clock steps", kind))
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    with or_skip(), served(kind, request) as (port, environment), wall(tmp_path) as clock:
        endpoint = f"http://{HOST}:{port}"
        for name, value in {**environment, "EVAC_PEER_TOKEN_FILE": str(token)}.items():
            monkeypatch.setenv(name, value)
        with driven(kind, endpoint, environment=clock.environment) as there:
            yield Clocked(kind, there, clock, endpoint)


async def test_a_clock_that_steps_before_any_call_of_a_flush_costs_no_more_than_until_it_is_right(
    clocked: Clocked,
) -> None:
    nbytes = NBYTES[clocked.kind]
    calls = clocked.there.calls(fresh(), nbytes)

    for call in range(calls) if NIGHTLY else range(0, calls, 3):
        ahead = HOURS if call % 2 else -HOURS

        def step(number: int, call: int = call, ahead: int = ahead) -> str:
            if number == call:
                clocked.clock.step(ahead)
            return "go"

        told = clocked.there.flush(mark := fresh(), nbytes, step)

        if clocked.kind in SIGNED:
            refused = {"kind": StoreUnavailable.__name__, "reason": answers.CLOCK}
            assert told == refused, (call, ahead)
        else:
            assert told is None, (call, ahead)
        clocked.clock.step(0)
        if told is not None:
            assert clocked.there.flush(mark, nbytes, lambda _: "go") is None, (call, ahead)
        assert await verify(clocked.store(mark), PREFIX, GENERATION) == ()


AZURE = (
    "<?xml version='1.0'?><Error><Code>AuthenticationFailed</Code><Message>Server failed to authenticate the request."
    "</Message><AuthenticationErrorDetail>Request date header too old: 'Mon, 30 Nov 2026 00:00:00 GMT'"
    "</AuthenticationErrorDetail></Error>"
)
GOOGLE = json.dumps(
    {
        "error": "invalid_grant",
        "error_description": "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable "
        "timeframe. Check your iat and exp values in the JWT claim.",
    }
)


@pytest.mark.parametrize(
    ("status", "said"),
    [(403, "<Error><Code>RequestTimeTooSkewed</Code></Error>"), (403, AZURE)],
    ids=["s3", "az"],
)
def test_what_stores_say_of_a_wrong_clock_is_worth_another_try(status: int, said: str) -> None:
    told = answers.of_text("key", f"Generic error: status code: {status}, body: {said}")

    assert type(told) is StoreUnavailable
    assert told.reason == answers.CLOCK
