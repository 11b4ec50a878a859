"""What may befall a store, at each call of a flush: rows of the table at the end of the run.

One cell is as many flushes as a flush has calls: each is struck from its own call on, for good, and
ends with an error that says what is wrong; the store heals, and the very same flush goes through. Refusals
strike so at every call. Faults that pass take turns there: they strike the first try of each and every call
in a flush of their own. With EVAC_NIGHTLY=1 each fault strikes for good at each call.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pytest

from evac.commit import verify
from evac.errors import StoreError, StoreRejected, StoreUnavailable
from evac.store.retry import Retry
from tests.handlers.commit.made import PREFIX
from tests.handlers.store.faulty import KINDS, Place, fresh, place
from tests.handlers.store.flushing import GENERATION, attempt, flush, whole
from tests.services.proxy import Fate, Rule

Record = Callable[[str, object], None]
Answer = tuple[int, bytes] | Fate


@pytest.fixture(params=KINDS)
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with place(request.param, request, monkeypatch) as made:
        yield made


def xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()


def google(reason: str, message: str = "") -> bytes:
    return json.dumps({"error": {"errors": [{"reason": reason}], "message": message}}).encode()


NO_BUCKET = google("notFound", "The specified bucket does not exist.")
WORDS: Mapping[str, Mapping[int, bytes]] = MappingProxyType(
    {
        "s3": {
            403: xml("AccessDenied"), 404: xml("NoSuchBucket"), 429: xml("TooManyRequests"),
            500: xml("InternalError"), 503: xml("SlowDown"),
        },
        "gs": {
            403: google("forbidden"), 404: NO_BUCKET, 429: google("rateLimitExceeded"),
            500: google("internalError"), 503: google("backendError"),
        },
        "az": {
            403: xml("AuthorizationFailure"), 404: xml("ContainerNotFound"), 429: xml("ServerBusy"),
            500: xml("InternalError"), 503: xml("ServerBusy"),
        },
    }
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        says: What the error's reason begins with, one of these.
        timeout: Of the store's requests, in seconds.
    """

    row: str
    answer: int | Fate
    kind: type[StoreError]
    says: tuple[str, ...]
    timeout: float = 60.0

    def at(self, where: str) -> Answer:
        """As that store would say it."""
        if isinstance(self.answer, Fate):
            return self.answer
        return self.answer, WORDS[where][self.answer]


LOST = ("connection lost", "half an answer")
FAULTS = (
    Fault("403", 403, StoreRejected, ("access denied (HTTP 403",)),
    Fault("404", 404, StoreRejected, ("no such bucket or container",)),
    Fault("429", 429, StoreUnavailable, ("throttled (HTTP 429",)),
    Fault("500", 500, StoreUnavailable, ("the store failed (HTTP 500",)),
    Fault("503", 503, StoreUnavailable, ("throttled (HTTP 503", "the store failed (HTTP 503")),
    Fault("slow", Fate.SILENCE, StoreUnavailable, ("timed out",), 0.25),
    Fault("reset", Fate.RESET, StoreUnavailable, ("connection lost",)),
    Fault("half a body", Fate.CUT, StoreUnavailable, LOST),
    Fault("half an answer", Fate.HALF, StoreUnavailable, (*LOST, "the store failed")),
    Fault("answer lost", Fate.LOST, StoreUnavailable, (*LOST, "the store failed")),
)
NIGHTLY = os.environ.get("EVAC_NIGHTLY") == "1"
TRANSIENT = [one for one in FAULTS if one.kind is StoreUnavailable]


def each(faults: object) -> pytest.MarkDecorator:
    assert isinstance(faults, list | tuple)
    return pytest.mark.parametrize("fault", [pytest.param(one, id=one.row) for one in faults])


@each(FAULTS)
async def test_a_call_that_fails_for_good_is_told_tears_nothing_and_heals(
    there: Place, record_property: Record, fault: Fault
) -> None:
    record_property("faults", (fault.row, there.kind))
    await flush(there.store(mark := fresh()))
    told: dict[int, str] = {}
    window = asyncio.Semaphore(32)

    async def strike(call: int) -> None:
        async with window:
            mark = fresh()
            store, unharmed = (
                there.store(mark, timeout=fault.timeout),
                there.store(mark, struck=False),
            )
            rule = Rule(fault.at(there.kind), within=mark, after=call)
            there.between.rules.append(rule)
            error = await attempt(store)
            if error is not None:
                told[call] = error.reason
                assert isinstance(error, fault.kind)
                assert error.reason.startswith(fault.says), call
            was = await whole(unharmed)
            assert was or error is not None, "told that it is safe"
            rule.times = 0
            assert await attempt(store) is None
            assert await verify(unharmed, PREFIX, GENERATION) == ()

    calls = range(there.requests(mark))
    if not NIGHTLY and fault in TRANSIENT:
        calls = calls[TRANSIENT.index(fault) :: len(TRANSIENT)]
    async with asyncio.TaskGroup() as tasks:
        for call in calls:
            tasks.create_task(strike(call))
    assert told


@each(TRANSIENT)
async def test_each_call_that_fails_once_is_made_again(
    there: Place, record_property: Record, fault: Fault
) -> None:
    record_property("faults", (fault.row, there.kind))
    store = Retry(
        there.store(mark := fresh(), timeout=fault.timeout), sleep=asyncio.sleep, first=0.01
    )
    there.between.rules.append(Rule(fault.at(there.kind), within=mark, first_tries=True))

    await flush(store)

    assert await verify(there.store(mark, struck=False), PREFIX, GENERATION) == ()
