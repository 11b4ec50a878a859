"""Several peers as one store: who is there and does not answer, who is frozen, and which copy counts."""

import asyncio
import random
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from evac.commit import finish, put_body, put_manifest, verify
from evac.errors import StoreError, StoreMissing, StoreRejected, StoreUnavailable
from evac.generation import Generation
from evac.store.location import parse
from evac.store.peer import OPTIONS, PeerStore
from evac.store.peer_group import PeerGroup
from evacd.clock import SystemClock
from evacd.peer import PeerServer, PeerSettings
from tests.handlers.commit.made import METADATA_BYTES, body_of, manifest
from tests.services.relay import relay

MIB = 1024 * 1024
SETTINGS = PeerSettings("127.0.0.1", 0, b"", 256 * MIB, 3600.0, 16)
BODY = "me/job/step-9.1/a.bin"
MARK = "me/job/evac-job.json"
GENERATION = Generation(1, 9)


@contextmanager
def running(settings: PeerSettings = SETTINGS) -> Iterator[PeerServer]:
    server = PeerServer(settings, SystemClock(), leaving=lambda: False, promised=lambda: 0)
    server.open()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def frozen() -> Iterator[str]:
    """A peer whose host takes connections and whose daemon does nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def named(server: PeerServer) -> str:
    return f"127.0.0.1:{server.port}"


def group(
    *members: str,
    node: str = "x",
    everybody: Callable[[str], list[str]] | None = None,
    hurried: bool = False,
) -> PeerGroup:
    location = parse(f"evac://{','.join(members)}", options=OPTIONS)
    return PeerGroup(location, lambda _: members, node=node, everybody=everybody, hurried=hurried)


def node_that_prefers(address: str, *members: str) -> str:
    names = (f"node-{number}" for number in range(200))
    return next(name for name in names if group(*members, node=name).order(BODY)[0] == address)


async def test_what_a_peer_may_have_that_does_not_answer_is_not_called_missing() -> None:
    with running(replace(SETTINGS, connections=1)) as busy, running() as other:
        there = PeerStore.from_url(f"evac://{named(busy)}")
        await there.put(BODY, memoryview(b"newest"))
        store = group(named(busy), named(other))
        held = asyncio.Event()
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def keep() -> None:
            """Its only place is taken by a put that does not end."""

            def wait(_: int) -> None:
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(held.wait(), loop).result()

            body = memoryview(bytearray(MIB))
            await there.put("me/other/step-1.1/a.bin", body, progress=wait)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(keep())
            await begun.wait()
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await store.list("me/job")
                with pytest.raises(StoreUnavailable):
                    await store.get(BODY)
                with pytest.raises(StoreUnavailable):
                    await store.create(BODY, b"x")
            held.set()

        assert [entry.key for entry in await store.list("me/job")] == [BODY]
        assert await store.get(BODY) == b"newest"


async def test_memory_whose_daemon_has_ended_is_not_waited_for() -> None:
    with running() as gone:
        address = named(gone)
    with running() as other:
        store = group(address, named(other))
        assert await store.list("") == []
        with pytest.raises(StoreMissing):
            await store.get(BODY)
        assert await store.create(BODY, b"x")


async def test_a_frozen_peer_does_not_use_up_the_notice() -> None:
    with frozen() as address, running() as good:
        members = (address, named(good))
        store = group(*members, node=node_that_prefers(address, *members))

        async with asyncio.timeout(20):  # one answer may take 60
            await store.put(BODY, memoryview(bytearray(17 * MIB)))

        assert store.order(BODY) == (named(good), address)
        assert good.shown()["jobs"]


@pytest.mark.parametrize("what", ["frozen", "of another token"])
async def test_one_bad_peer_keeps_nobody_that_saves_from_committing(what: str) -> None:
    """It would keep every node of its jobs from it, since a commit asks them all."""
    with ExitStack() as ends:
        good = named(ends.enter_context(running()))
        other = ends.enter_context(running(replace(SETTINGS, token=b"another-token-16")))
        bad = ends.enter_context(frozen()) if what == "frozen" else named(other)
        members = (bad, good)
        nodes = [node_that_prefers(address, *members) for address in members]
        stores = [group(*members, node=node, hurried=True) for node in nodes]

        async def save(store: PeerGroup, prefix: str) -> None:
            # On a busy machine the good one may be late, too; as long as the bad one is asked, all tries fail.
            while isinstance(await failure(attempt(store, prefix)), StoreUnavailable):
                pass

        async def attempt(store: PeerGroup, prefix: str) -> None:
            made = manifest(GENERATION, 0, 1)
            body = memoryview(body_of(0))
            await put_body(store, prefix, GENERATION, made.files[0].name, body, rank=0)
            await put_manifest(store, prefix, made, metadata=METADATA_BYTES)
            assert await finish(store, prefix, GENERATION, METADATA_BYTES)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for number, store in enumerate(stores):
                tasks.create_task(save(store, f"me/job-{number}"))

        # Whoever reads where all answer finds both whole.
        reader = group(good)
        for number in range(len(stores)):
            assert await verify(reader, f"me/job-{number}", GENERATION) == ()


async def test_where_no_peer_answers_who_saves_is_told_that_it_may_try_again() -> None:
    with frozen() as address:
        store = group(address, hurried=True)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            asked = [store.put(BODY, memoryview(b"x")), store.create(MARK, b"x"), store.list("me")]
            failed = [tasks.create_task(failure(one)) for one in asked]

    assert [type(one.result()) for one in failed] == [StoreUnavailable] * 3


async def test_a_peer_that_refuses_is_asked_again_by_who_saves() -> None:
    with ExitStack() as ends:
        members = [named(ends.enter_context(running()))]
        with running(replace(SETTINGS, token=b"another-token-16")) as refuses:
            settings = replace(SETTINGS, port=refuses.port)
            members.append(named(refuses))
            store = group(*members, hurried=True)
            assert await listed(store, "me") == []
        takes = ends.enter_context(running(settings))
        await PeerStore.from_url(f"evac://{named(takes)}").put(BODY, memoryview(b"x"))

        assert await listed(store, "me") == [BODY]


async def listed(store: PeerGroup, prefix: str) -> list[str]:
    return [entry.key for entry in await store.list(prefix)]


async def failure(work: Coroutine[Any, Any, object]) -> StoreError | None:
    try:
        await work
    except StoreError as error:
        return error
    return None


async def test_a_put_that_is_cut_off_on_a_frozen_peer_is_offered_to_another_first() -> None:
    with frozen() as address, running() as good:
        members = (address, named(good))
        node = node_that_prefers(address, *members)
        now = 0.0
        location = parse(f"evac://{','.join(members)}", options=OPTIONS)
        store = PeerGroup(location, lambda _: members, node=node, clock=lambda: now)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(store.put(BODY, memoryview(b"x")))
            await asyncio.sleep(0)
            now = 1.5
            task.cancel()

        assert store.order(BODY)[0] == named(good)


async def test_of_two_nodes_that_create_a_key_at_once_one_does() -> None:
    """Though each chooses among the others, and has what the other has put in its own memory."""
    with running() as one, running() as two, running() as three:
        everybody = [named(one), named(two), named(three)]
        numbers = random.getstate()
        for number in range(12):
            key = f"me/job-{number}/step-1.1/__0.manifest.json"
            writers = [
                group(*members, node=node, everybody=lambda _: everybody)
                for node, members in (("a", everybody[1:]), ("b", everybody[:1] + everybody[2:]))
            ]
            async with asyncio.TaskGroup() as tasks:
                made = [
                    tasks.create_task(writer.create(key, text))
                    for writer, text in zip(writers, (b"one", b"two"), strict=True)
                ]
            assert [task.result() for task in made].count(True) <= 1
            winner = b"one" if made[0].result() else b"two"
            assert {await writer.get(key) for writer in writers} <= {winner, b"one", b"two"}
            assert len({await writer.get(key) for writer in writers}) == 1
            assert not await writers[0].create(key, b"late")
        assert random.getstate() == numbers, "whoever trains draws from these"


async def test_the_copy_that_came_last_counts_and_none_comes_back() -> None:
    with running() as one, running() as two:
        members = (named(one), named(two))
        first, second = (
            group(*members, node=node_that_prefers(address, *members)) for address in members
        )
        await first.put(MARK, memoryview(b"old"))
        await asyncio.sleep(0.01)
        await second.put(MARK, memoryview(b"newer"))

        for store in (first, second):
            assert await store.get(MARK) == b"newer"
            assert [entry.nbytes for entry in await store.list("me/job")] == [5]
        await first.delete(MARK)
        for store in (first, second):
            with pytest.raises(StoreMissing):
                await store.get(MARK)


async def test_the_copy_that_came_last_counts_however_late_its_holder_answers() -> None:
    with ExitStack() as ends:
        first, last = (ends.enter_context(running()) for _ in range(2))
        # Whoever asks by this way is heard later, and its handshake alone takes three such whiles.
        way = ends.enter_context(relay(last.port, pace=lambda _: time.sleep(0.1)))
        old = PeerStore.from_url(f"evac://{named(first)}")
        await old.put(BODY, memoryview(b"old"))
        async with asyncio.timeout(60):
            while await old.age(BODY) < 100:  # it tells milliseconds
                pass
        await PeerStore.from_url(f"evac://{named(last)}").put(BODY, memoryview(b"newer"))
        store = group(named(first), f"127.0.0.1:{way.port}")

        assert [one.nbytes for one in await store.list("me")] == [len(b"newer")]
        assert await store.get(BODY) == b"newer"


async def test_what_was_created_is_taken_away_by_the_put_that_goes_elsewhere() -> None:
    with running() as one, running() as other:
        members = (named(one), named(other))
        made_at = group(*members)._ordered(BODY, members, whose="")[0]
        elsewhere = next(address for address in members if address != made_at)
        store = group(*members, node=node_that_prefers(elsewhere, *members))

        assert await store.create(BODY, b"made")
        await store.put(BODY, memoryview(b"put"))

        assert await PeerStore.from_url(f"evac://{made_at}").list("me") == []
        assert await store.get(BODY) == b"put"


async def test_another_holder_is_asked_where_the_first_fails() -> None:
    with running() as one:
        with running() as two:
            members = (named(one), named(two))
            for server in (one, two):
                await PeerStore.from_url(f"evac://{named(server)}").put(BODY, memoryview(b"state"))
            store = group(*members)
            assert await store.read(BODY, 0, memoryview(bytearray(5))) == 5
        into = bytearray(5)
        assert await store.read(BODY, 0, memoryview(into)) == 5
        assert into == b"state"


async def test_who_may_not_list_is_told_of_the_store() -> None:
    with running(replace(SETTINGS, token=b"a token that nobody would guess")) as closed:
        url = f"evac://{named(closed)}/some/where"
        with pytest.raises(StoreRejected, match="access denied") as raised:
            await PeerStore.from_url(url).list("")

    assert raised.value.key == url
