"""More rows of the table of faults: names, keys, clocks, bits and what is left open."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from evac.commit import verify
from evac.errors import StoreRejected, StoreUnavailable
from evac.store.retry import Retry
from tests.handlers.commit.made import PREFIX
from tests.handlers.store.asking import failures
from tests.handlers.store.cells import COLUMNS, ROWS, TESTS, filled
from tests.handlers.store.faulty import KINDS, Place, fresh, place
from tests.handlers.store.flushing import GENERATION, attempt, flush, whole
from tests.handlers.store.test_faults import WORDS
from tests.services.proxy import Fate, Rule

Record = Callable[[str, object], None]


@pytest.fixture(params=KINDS)
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with place(request.param, request, monkeypatch) as made:
        yield made


def of(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("there", kinds, indirect=True)


async def test_a_store_where_nobody_listens_is_told_by_every_call(
    there: Place, record_property: Record
) -> None:
    record_property("faults", ("nobody there", there.kind))
    gone = Place(there.kind, there.between, "http://127.0.0.1:1")

    for name, error in (await failures(gone.store(fresh(), struck=False))).items():
        assert type(error) is StoreUnavailable, name
        assert error.reason == "connection refused", name


@of("s3", "az")
async def test_keys_that_expire_at_any_call_of_a_flush_are_replaced(
    there: Place, record_property: Record
) -> None:
    record_property("faults", ("keys expire", there.kind))
    status, code = (
        (400, "ExpiredToken") if there.kind == "s3" else (401, "InvalidAuthenticationInfo")
    )
    said = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
    store = there.store(mark := fresh())
    there.between.rules.append(Rule((status, said), within=mark, times=1))

    error = await attempt(store)
    assert isinstance(error, StoreUnavailable)
    assert error.reason == f"credentials have expired ({code})"

    there.between.rules[:] = [Rule((status, said), within=mark, first_tries=True)]
    await flush(Retry(store, sleep=asyncio.sleep, first=0.01))
    assert await verify(there.store(mark, struck=False), PREFIX, GENERATION) == ()


@of("gs")
async def test_what_is_left_behind_is_judged_by_the_stores_clock(
    there: Place, record_property: Record
) -> None:
    record_property("faults", ("wall clock wrong", there.kind))
    store = there.store(mark := fresh())
    part = there.store(f"{mark}/.evac-parts", struck=False)
    await part.put("0123456789abcdef/00000", memoryview(b"x"))

    # Our clock is two hours ahead of the store's: by ours it would be long dead.
    there.between.ahead = timedelta(hours=-2)
    assert await store.clean(older_than=-3600) == 0
    there.between.ahead = timedelta()
    assert await store.clean(older_than=-3600) == 1


async def test_a_bit_that_flips_on_its_way_is_refused_or_found_and_named(
    there: Place, record_property: Record
) -> None:
    record_property("faults", ("bit flip on its way", there.kind))
    within = {"s3": "partNumber=2", "az": "comp=block&", "gs": "00001"}[there.kind]
    there.between.rules.append(Rule(Fate.FLIP, within=within, times=1))

    error = await attempt(there.store(mark := fresh()))

    assert error is None
    found = await verify(there.store(mark, struck=False), PREFIX, GENERATION)
    if there.kind == "gs":  # it tells what it has summed, so the part is sent again
        assert found == ()
    else:
        assert ["the first at byte 0" in one.reason for one in found] == [True]


async def test_where_we_may_not_delete_all_is_committed_and_counts(
    there: Place, record_property: Record
) -> None:
    """As with the rights that writers of backups usually have; what is left over goes with the generation."""
    record_property("faults", ("403", there.kind))
    store = there.store(mark := fresh())
    refused = 403, WORDS[there.kind][403]
    # Azure's library deletes in batches, be it of one.
    deleting = Rule(refused, within="comp=batch") if there.kind == "az" else Rule(refused, "DELETE")
    there.between.rules.append(deleting)

    await flush(store)

    with pytest.raises(StoreRejected):
        await store.delete("x")
    assert await verify(there.store(mark, struck=False), PREFIX, GENERATION) == ()


async def test_flushes_that_fail_leave_no_fd_and_no_thread_behind(
    there: Place, record_property: Record
) -> None:
    record_property("faults", ("fds and threads", there.kind))
    store = there.store(mark := fresh())
    within = {"s3": "partNumber=2", "az": "comp=block&", "gs": "00001"}[there.kind]
    rule = Rule(Fate.RESET, within=within)
    there.between.rules.append(rule)

    async def opened() -> tuple[int, int]:
        """File descriptors and threads after one more."""
        assert await attempt(store) is not None
        # The proxy is in this process: what it serves has to end first.
        for _ in range(200):
            if not any(thread.name.endswith("(_serve)") for thread in threading.enumerate()):
                break
            await asyncio.sleep(0.02)
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    looks = [await opened() for _ in range(16)]

    # A connection that is kept may be there at one look and not at the next, so the least of the last ones
    # counts; one left behind by each flush would make it 8 more. A pool may still grow to its width.
    for what, grown in zip(zip(*looks, strict=True), (0, 2), strict=True):
        assert min(what[8:]) <= max(what[:8]) + grown, what
        assert min(what[12:]) <= max(what[:4]) + grown, what
    rule.times = 0
    assert await attempt(store) is None
    assert await whole(there.store(mark, struck=False))


@pytest.mark.parametrize("file", sorted({one.file for one in filled()}))
def test_what_fills_a_cell_elsewhere_exists(file: str) -> None:
    text = (TESTS / file).read_text()
    contract = (TESTS / "handlers/store/contract.py").read_text()

    wanted = {one.test for one in filled() if one.file == file}
    assert [one for one in wanted if f"def {one}(" not in text + contract] == []
    assert {one.cell[0] for one in filled()} <= {*ROWS}
    assert {one.cell[1] for one in filled()} <= {*COLUMNS}
