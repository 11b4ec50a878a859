"""`GcsStore` on fake-gcs-server, and what it says when something is wrong."""

import asyncio
import json
import os
from collections.abc import Iterator

import pytest

from evac.errors import StoreError, StoreRejected, StoreUnavailable
from evac.store import Store
from evac.store.gcs import COMPOSE, PARTS, GcsStore
from evac.store.location import Location
from evac.store.parts import SMALLEST, part_nbytes
from tests.handlers.store.asking import failures
from tests.handlers.store.conftest import fresh
from tests.handlers.store.contract import MIB, StoreContract
from tests.services.gcs import GcsServer
from tests.services.proxy import Fate, Proxy, Rule, proxy

BUCKET = "evac-test"


def at(endpoint: str, *, bucket: str = BUCKET) -> GcsStore:
    return GcsStore.from_url(f"gs://{bucket}/{fresh()}?endpoint={endpoint}")


def prefix(store: GcsStore) -> str:
    return store.url.partition(f"{BUCKET}/")[2].partition("?")[0]


@pytest.fixture
def between(fake_gcs: GcsServer) -> Iterator[Proxy]:
    """What stands between us and the server."""
    with proxy(fake_gcs.port) as made:
        yield made


class TestGcsStore(StoreContract):
    @pytest.fixture
    def store(self, fake_gcs: GcsServer) -> Store:
        return at(fake_gcs.endpoint)


def answer(reason: str) -> bytes:
    return json.dumps({"error": {"errors": [{"reason": reason}]}}).encode()


@pytest.mark.parametrize(
    ("fate", "kind", "reason"),
    [
        ((403, answer("forbidden")), StoreRejected, "access denied (HTTP 403 forbidden)"),
        (
            (404, b'{"message": "The specified bucket does not exist."}'),
            StoreRejected,
            "no such bucket or container",
        ),
        (
            (429, answer("rateLimitExceeded")),
            StoreUnavailable,
            "throttled (HTTP 429 rateLimitExceeded)",
        ),
        (
            (503, answer("backendError")),
            StoreUnavailable,
            "the store failed (HTTP 503 backendError)",
        ),
        (Fate.RESET, StoreUnavailable, "connection lost"),
    ],
)
async def test_each_call_says_what_is_wrong_and_whether_to_try_again(
    between: Proxy, fate: tuple[int, bytes] | Fate, kind: type[StoreError], reason: str
) -> None:
    between.rules.append(Rule(fate))

    for name, error in (await failures(at(between.endpoint))).items():
        assert type(error) is kind, name
        assert error.reason == reason, name


async def test_a_host_without_a_name_or_an_answer_is_told_apart() -> None:
    for endpoint, reason in (
        ("http://no-such-host.invalid", "its host name cannot be resolved"),
        ("http://127.0.0.1:1", "connection refused"),
    ):
        with pytest.raises(StoreUnavailable) as raised:
            await at(endpoint).get("a")
        assert raised.value.reason == reason


async def test_a_missing_bucket_is_said(fake_gcs: GcsServer) -> None:
    found = await failures(at(fake_gcs.endpoint, bucket="nobody-made-it"))

    for name in ("put", "put in parts", "create", "list"):
        assert isinstance(found[name], StoreRejected), name


async def test_a_body_survives_lost_parts_and_bits_that_flip(
    between: Proxy, fake_gcs: GcsServer
) -> None:
    data = os.urandom(40 * MIB + 3)
    between.rules += [
        Rule((503, answer("backendError")), "POST", "00001", times=2),
        Rule(Fate.RESET, "POST", "00002", times=1),
        Rule(Fate.FLIP, "POST", "00003", times=1),
        Rule((500, b""), "POST", "compose", times=1),
    ]
    store, seen = at(between.endpoint), list[int]()

    await store.put("a/b", memoryview(data), progress=seen.append)

    assert await store.get("a/b") == data
    assert sum(seen) == len(data)
    assert fake_gcs.objects(BUCKET, prefix(store)) == [f"{prefix(store)}/a/b"]


async def test_a_body_that_always_arrives_damaged_never_gets_its_name(
    between: Proxy, fake_gcs: GcsServer
) -> None:
    store = at(between.endpoint)
    for nbytes, within in ((1000, "name="), (40 * MIB, "00003")):
        between.rules[:] = [Rule(Fate.FLIP, "POST", within)]
        with pytest.raises(StoreUnavailable, match="damaged on its way"):
            await store.put("a/b", memoryview(bytearray(nbytes)))

    assert fake_gcs.objects(BUCKET, prefix(store)) == []


async def test_half_an_answer_is_never_taken_for_a_whole_one(between: Proxy) -> None:
    store = at(between.endpoint)
    data = os.urandom(3 * MIB)
    await store.put("a/b", memoryview(data))
    between.rules.append(Rule(Fate.HALF, "GET", "alt=media"))

    with pytest.raises(StoreUnavailable):
        await store.get("a/b")
    with pytest.raises(StoreUnavailable):
        await store.read("a/b", 0, memoryview(bytearray(len(data))))


async def test_a_refused_part_leaves_nothing_behind(between: Proxy, fake_gcs: GcsServer) -> None:
    between.rules.append(Rule((403, answer("forbidden")), "POST", "00003"))
    store = at(between.endpoint)
    data = bytearray(40 * MIB)

    with memoryview(data) as view, pytest.raises(StoreRejected, match="access denied"):
        await store.put("a/b", view)
    data.clear()

    assert fake_gcs.objects(BUCKET, prefix(store)) == []


async def test_a_part_that_somebody_deletes_meanwhile_costs_one_more_try(between: Proxy) -> None:
    """The emulator says 500 then; this is what Google's own says."""
    store = at(between.endpoint)
    said = {"message": "Object evac-test/a-part (generation: 0) not found.", "reason": "notFound"}
    gone = json.dumps({"error": {"code": 404, "errors": [said], "message": said["message"]}})
    between.rules.append(Rule((404, gone.encode()), "POST", "/compose", times=1))
    body = os.urandom(40 * MIB)

    with pytest.raises(StoreUnavailable, match="not there any more"):
        await store.put("a/body", memoryview(body))
    await store.put("a/body", memoryview(body))

    assert await store.get("a/body") == body


async def test_more_parts_than_one_call_composes_make_a_tree(fake_gcs: GcsServer) -> None:
    store = SmallParts(Location("gs", BUCKET, fresh(), {"endpoint": fake_gcs.endpoint}))
    data = os.urandom(17 * MIB)  # 35 parts of half a MiB

    await store.put("a/b", memoryview(data))

    assert await store.get("a/b") == data
    assert fake_gcs.objects(BUCKET, prefix(store)) == [f"{prefix(store)}/a/b"]


async def test_parts_are_no_objects_and_only_dead_ones_are_cleaned(fake_gcs: GcsServer) -> None:
    store = at(fake_gcs.endpoint)
    other = GcsStore.from_url(f"{store.url.partition('?')[0]}/{PARTS}?endpoint={fake_gcs.endpoint}")
    await other.put("0123456789abcdef/00000", memoryview(b"x"))
    await store.put("a/b", memoryview(b"x"))

    assert [entry.key for entry in await store.list("")] == ["a/b"]
    with pytest.raises(StoreRejected):
        await store.put(f"{PARTS}/x", memoryview(b"x"))
    assert await store.clean(older_than=0) == 0  # its put may be slow
    assert await store.clean(older_than=-3600) == 1
    assert await asyncio.to_thread(fake_gcs.objects, BUCKET, prefix(store)) == [
        f"{prefix(store)}/a/b"
    ]


def test_no_body_has_more_parts_than_a_tree_of_two_levels_composes() -> None:
    for nbytes in (17 * MIB, 1 << 30, 1 << 36, 1 << 40, (1 << 40) + 1):
        size = part_nbytes(nbytes, most=COMPOSE * COMPOSE)
        assert size >= SMALLEST
        assert -(-nbytes // size) <= COMPOSE * COMPOSE


class SmallParts(GcsStore):
    """Cuts bodies so small that a test can have many parts."""

    part = MIB // 2
