"""What every store promises; each store's test class inherits this and gives a `store` fixture."""

import asyncio
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evac.errors import StoreMissing, StoreRejected
from evac.store import Store

MIB = 1024 * 1024
BAD_KEYS = ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/.", "./a", "a/\0"]


class StoreContract:
    async def test_what_was_put_is_read_back(self, store: Store) -> None:
        await store.put("job/step-1.1/__0_0.distcp", memoryview(b"state"))

        assert await store.get("job/step-1.1/__0_0.distcp") == b"state"

    @pytest.mark.parametrize(
        "nbytes", [0, 1, 4095, 4096, 4097, MIB - 1, MIB, 16 * MIB + 1, 33 * MIB + 4099]
    )
    async def test_every_length_survives_byte_for_byte(self, store: Store, nbytes: int) -> None:
        data = os.urandom(nbytes)
        seen: list[int] = []

        await store.put("body.bin", memoryview(data), progress=seen.append)

        into = bytearray(nbytes + 1)
        assert await store.read("body.bin", 0, memoryview(into)) == nbytes
        assert bytes(into[:nbytes]) == data
        assert sum(seen) == nbytes
        assert [e.nbytes for e in await store.list("")] == [nbytes]

    async def test_a_place_is_prepared_for_what_is_put_there_and_holds_nothing(
        self, store: Store
    ) -> None:
        await store.prepare("me/job")
        await store.prepare("me/job")

        assert await store.list("") == []
        assert await store.create("me/job/incarnation-1.json", b"{}")

    @pytest.mark.parametrize("prefix", ["", "..", "a/../b", "/a"])
    async def test_no_place_is_prepared_outside(self, store: Store, prefix: str) -> None:
        with pytest.raises(StoreRejected):
            await store.prepare(prefix)

    async def test_a_second_put_replaces_the_first(self, store: Store) -> None:
        await store.put("a/b", memoryview(b"a longer first one"))
        await store.put("a/b", memoryview(b"second"))

        assert await store.get("a/b") == b"second"

    async def test_create_never_replaces(self, store: Store) -> None:
        assert await store.create("a/b", b"first")
        assert not await store.create("a/b", b"second")

        assert await store.get("a/b") == b"first"

    async def test_of_many_creators_exactly_one_wins(self, store: Store) -> None:
        async def attempt(number: int) -> None:
            won[number] = await store.create("a/b", str(number).encode())

        won: dict[int, bool] = {}
        async with asyncio.TaskGroup() as tasks:
            for number in range(16):
                tasks.create_task(attempt(number))

        [winner] = [number for number, one in won.items() if one]
        assert await store.get("a/b") == str(winner).encode()

    async def test_puts_side_by_side_do_not_mix(self, store: Store) -> None:
        bodies = {f"a/{i}.bin": bytes([i]) * (17 * MIB + i) for i in range(4)}

        async with asyncio.TaskGroup() as tasks:
            for key, data in bodies.items():
                tasks.create_task(store.put(key, memoryview(data)))

        for key, data in bodies.items():
            assert await store.get(key) == data

    async def test_a_missing_object_is_missing(self, store: Store) -> None:
        await store.put("a/b", memoryview(b"x"))

        for key in ("a/c", "b", "a/b/c/d"):
            with pytest.raises(StoreRejected):
                await store.get(key)
        with pytest.raises(StoreMissing):
            await store.get("a/c")
        with pytest.raises(StoreMissing):
            await store.read("c/d", 0, memoryview(bytearray(1)))

    async def test_reads_begin_anywhere_and_stop_at_the_end(self, store: Store) -> None:
        await store.put("a", memoryview(b"0123456789"))

        into = bytearray(4)
        assert await store.read("a", 3, memoryview(into)) == 4
        assert bytes(into) == b"3456"
        assert await store.read("a", 8, memoryview(into)) == 2
        assert bytes(into[:2]) == b"89"
        assert await store.read("a", 10, memoryview(into)) == 0

    async def test_a_listing_is_sorted_and_keeps_to_its_prefix(self, store: Store) -> None:
        for key in ("a/b/2", "a/b/1", "a/bc/1", "a/b.txt", "a/.metadata", "z"):
            await store.put(key, memoryview(key.encode()))

        assert [e.key for e in await store.list("a/b")] == ["a/b/1", "a/b/2"]
        everything = [e.key for e in await store.list("")]
        assert everything == sorted(("a/b/2", "a/b/1", "a/bc/1", "a/b.txt", "a/.metadata", "z"))
        assert await store.list("nothing/here") == []

    async def test_forgetting_is_final_and_may_be_repeated(self, store: Store) -> None:
        await store.put("a/b/c", memoryview(b"x"))

        await store.delete("a/b/c")
        await store.delete("a/b/c")

        assert await store.list("") == []
        await store.put("a/b/c", memoryview(b"again"))
        assert await store.get("a/b/c") == b"again"

    @pytest.mark.parametrize("key", BAD_KEYS)
    async def test_a_key_that_is_no_plain_path_is_refused(self, store: Store, key: str) -> None:
        with pytest.raises(StoreRejected):
            await store.put(key, memoryview(b"x"))
        with pytest.raises(StoreRejected):
            await store.create(key, b"x")
        with pytest.raises(StoreRejected):
            await store.get(key)
        with pytest.raises(StoreRejected):
            await store.delete(key)
        assert await store.list("") == []

    async def test_cleaning_takes_nothing_that_was_put(self, store: Store) -> None:
        assert await store.clean() == 0
        await store.put("a/b", memoryview(b"x"))

        assert await store.clean(older_than=-3600) == 0

        assert await store.get("a/b") == b"x"

    async def test_the_callers_memory_is_free_again_afterwards(self, store: Store) -> None:
        data = bytearray(20 * MIB)
        view = memoryview(data)

        await store.put("a", view)
        view.release()

        data.clear()  # a BufferError where somebody still holds a slice of it

    async def test_a_cancelled_put_leaves_nothing_and_frees_the_memory(self, store: Store) -> None:
        data = bytearray(256 * MIB)
        view = memoryview(data)
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def progress(_: int) -> None:
            loop.call_soon_threadsafe(begun.set)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            putting = tasks.create_task(store.put("a/b", view, progress=progress))
            await begun.wait()
            putting.cancel()
        view.release()
        data.clear()

        assert putting.cancelled()
        assert await store.list("") == []

    # A class per store inherits this one test: that is meant, and the store is emptied each time.
    @settings(
        max_examples=20,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    @given(
        actions=st.lists(
            st.tuples(
                st.sampled_from(["put", "create", "delete"]),
                st.sampled_from(["a", "b/c", "b/d", "b/e/f"]),
                st.binary(max_size=8),
            ),
            max_size=12,
        )
    )
    def test_it_behaves_as_a_map(self, store: Store, actions: list[tuple[str, str, bytes]]) -> None:
        async def compare() -> None:
            for entry in await store.list(""):
                await store.delete(entry.key)
            model: dict[str, bytes] = {}
            for action, key, data in actions:
                if action == "put":
                    await store.put(key, memoryview(data))
                    model[key] = data
                elif action == "create":
                    assert await store.create(key, data) is (key not in model)
                    model.setdefault(key, data)
                else:
                    await store.delete(key)
                    model.pop(key, None)
            listed = {e.key: e.nbytes for e in await store.list("")}
            assert listed == {key: len(data) for key, data in model.items()}
            for key, data in model.items():
                assert await store.get(key) == data

        asyncio.run(compare())
