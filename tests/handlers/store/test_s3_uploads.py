"""Uploads that end before they are whole leave nothing in S3, and nobody else's are touched."""

import asyncio
import threading
from datetime import timedelta

from evac.store.s3 import S3Store, is_body
from tests.handlers.store.contract import MIB
from tests.handlers.store.in_s3 import BODY, BUCKET, at
from tests.services.proxy import Fate, Proxy, Rule
from tests.services.s3 import S3Server


async def test_a_cancelled_put_aborts_its_upload(keys: None, seaweed: S3Server) -> None:
    store = at(seaweed.endpoint)
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        putting = tasks.create_task(
            store.put(
                BODY,
                memoryview(bytearray(256 * MIB)),
                progress=lambda _: (loop.call_soon_threadsafe(begun.set), None)[1],
            )
        )
        await begun.wait()
        putting.cancel()

    assert await asyncio.to_thread(seaweed.uploads, BUCKET) == []


async def test_a_late_abort_spares_what_is_written_anew(between: Proxy) -> None:
    """A put is cut off, and the same body is begun again while its parts are still looked for."""
    first = at(between.endpoint)
    second = S3Store.from_url(first.url)
    loop, begun, looks = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    again, over = threading.Event(), threading.Event()

    def met() -> None:
        loop.call_soon_threadsafe(looks.set)
        again.wait(60)

    def written(_: int) -> None:
        again.set()
        over.wait(60)

    between.rules.append(Rule(Fate.PASS, "GET", "uploads", times=1, met=met))
    body = memoryview(bytearray(64 * MIB))
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        putting = tasks.create_task(
            first.put(
                BODY,
                memoryview(bytearray(256 * MIB)),
                progress=lambda _: (loop.call_soon_threadsafe(begun.set), None)[1],
            )
        )
        await begun.wait()
        putting.cancel()
        await looks.wait()
        anew = tasks.create_task(second.put(BODY, body, progress=written))
        await asyncio.wait([putting])
        over.set()
        await anew

    assert [entry.nbytes for entry in await second.list("user/job")] == [64 * MIB]
    assert await second.clean(older_than=-3600) == 1


async def test_cleaning_aborts_our_dead_uploads_and_nobody_elses(
    keys: None, seaweed: S3Server
) -> None:
    store = at(seaweed.endpoint)
    prefix = store.url.partition(f"{BUCKET}/")[2].partition("?")[0]
    ours, theirs, elsewhere = f"{prefix}/{BODY}", f"{prefix}/a/other.tar", f"other/{BODY}"
    weights = f"{prefix}/user/job/step-2.1/weights/__0_0.distcp"
    for key in (ours, weights, theirs, elsewhere):
        await asyncio.to_thread(seaweed.call, "create_multipart_upload", Bucket=BUCKET, Key=key)

    assert await store.clean(older_than=0) == 0  # a part may be on its way for five minutes
    assert await store.clean(older_than=-3600) == 2

    left = await asyncio.to_thread(seaweed.call, "list_multipart_uploads", Bucket=BUCKET)
    uploads = left["Uploads"]
    assert isinstance(uploads, list)
    assert sorted(one["Key"] for one in uploads) == sorted((theirs, elsewhere))
    for one in uploads:
        await asyncio.to_thread(
            seaweed.call, "abort_multipart_upload", Bucket=BUCKET, Key=one["Key"],
            UploadId=one["UploadId"],
        )  # fmt: skip


async def test_dead_is_what_is_dead_by_the_stores_clock(between: Proxy, seaweed: S3Server) -> None:
    store = at(between.endpoint)
    prefix = store.url.partition(f"{BUCKET}/")[2].partition("?")[0]
    key = f"{prefix}/{BODY}"
    await asyncio.to_thread(seaweed.call, "create_multipart_upload", Bucket=BUCKET, Key=key)

    between.ahead = timedelta(hours=-2)  # so ours is two hours ahead of it
    assert await store.clean(older_than=-3600) == 0
    between.ahead = timedelta()
    assert await store.clean(older_than=-3600) == 1


def test_only_bodies_of_generations_are_ours() -> None:
    assert is_body(BODY)
    assert is_body("step-1.1/weights.bin")
    assert is_body("job/step-1.1/weights/__0_0.distcp")
    for key in (
        "",
        "a",
        "step-1.1",
        "step-1.1/other.tar",
        "job/step-1/__0_0.distcp",
        "x/__0_0.distcp",
        "step-1.1/other/__0_0.distcp",
        "weights/__0_0.distcp",
    ):
        assert not is_body(key)
