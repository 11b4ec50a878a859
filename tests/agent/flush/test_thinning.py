"""All that saves on a node thins out together: nothing that one of them writes is taken away by another."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from evac.commit import State, survey
from evac.generation import Generation
from evac.store import Owner
from evac.store.local import LocalStore
from evacd.flush.save import Place, Saved, Saver
from evacd.flush.thinning import Thinning
from tests.agent.quiet.memory import Aboard
from tests.handlers.commit.made import PREFIX, commit
from tests.handlers.store.watched import Watched

LANE = "file:///lane"
PLACE = Place(LANE, PREFIX, Owner(0, 0))


class Crowded(Watched):
    """A store that is thinned out by somebody else before each body."""

    def __init__(self, folder: Path, other: Saver) -> None:
        super().__init__(LocalStore(str(folder)), lambda verb, key: None)
        self._other = other

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        # What another flush has begun of it lies there, torn.
        await super().put(f"{key.rpartition('/')[0]}/__9_0.distcp", memoryview(b"half"))
        assert await self._other.thin_out(PLACE, keep=1) == ""
        await super().put(key, data, progress=progress)


async def test_what_is_being_written_is_thinned_out_by_nobody_until_it_is_there(
    tmp_path: Path,
) -> None:
    local = LocalStore(str(tmp_path))
    other = Saver(lambda url, owner: local, node="node-1")
    saver = other.through(lambda url, owner: Crowded(tmp_path, other))
    await commit(local, Generation(1, 20))
    with ExitStack() as ends:
        aboard = Aboard((LANE,), ends)
        old = aboard.stage(PREFIX, 10, 4096)
        with aboard.hold(PREFIX, old) as parts:
            saved = await saver.save(parts, lane=LANE, order="")

    assert isinstance(saved, Saved)
    found = {one.generation.step: one.state for one in await survey(local, PREFIX)}
    assert found == {20: State.COMPLETE, 10: State.COMPLETE}
    assert await other.thin_out(PLACE, keep=1) == ""
    assert [one.generation.step for one in await survey(local, PREFIX)] == [20]


async def test_who_saves_in_quiet_time_and_who_flushes_read_what_is_whole_once(
    tmp_path: Path,
) -> None:
    asked = Counter[str]()
    store = Watched(LocalStore(str(tmp_path)), lambda verb, key: asked.update([verb]))
    flush = Saver(lambda url, owner: store, node="node-1")
    quiet = flush.through(lambda url, owner: store)
    for step in range(8):
        await commit(store, Generation(1, step))
    assert await flush.thin_out(PLACE, keep=8) == ""
    asked.clear()

    assert await quiet.thin_out(PLACE, keep=8) == ""
    assert await flush.thin_out(PLACE, keep=8) == ""

    assert dict(asked) == {"list": 2}


async def test_a_node_that_lives_for_months_remembers_no_job_for_ever(tmp_path: Path) -> None:
    store, thinning = LocalStore(str(tmp_path)), Thinning()
    for job in range(200):
        await thinning.thin(store, Place(LANE, f"a/job-{job}", Owner(0, 0)), keep=1)

    assert thinning.remembered == 64
