"""Bodies of a try that failed lie there, whatever the kind of store: none is sent again, nor planned to be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from evac.store import Store, open_store
from evac.store.metered import Metered, Observation
from evacd.flush.save import Saved, Saver, Unsaved
from tests.agent.flush.test_there import Job
from tests.handlers.commit.test_committing import Cut
from tests.handlers.store.faulty import KINDS, fresh, place


@pytest.fixture(params=("file", *KINDS))
def real(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """One of each kind of durable store."""
    if request.param == "file":
        yield open_store(f"file://{tmp_path}")
        return
    with place(request.param, request, monkeypatch) as there:
        yield there.store(fresh())


async def test_what_a_failed_try_has_put_is_counted_on_and_not_sent_again(real: Store) -> None:
    sent: list[str] = []

    def watch(one: Observation) -> None:
        if one.verb == "put" and one.key.endswith(".bin"):
            sent.append(one.key.rpartition("/")[2])

    # It ends within the third rank's body.
    store: Store = Cut(real, 2)
    saver, job = Saver(lambda url, owner: store, node="node-1"), Job(3, 3, apart=False)
    assert isinstance(await saver.save(job.parts, lane=real.url, order=""), Unsaved)
    left = saver.there.less(job.unit(real.url)).candidates[0].left_on(real.url)

    store = Metered(real, watch, clock=lambda: 0.0)
    saved = await saver.save(job.parts, lane=real.url, order="")

    assert isinstance(saved, Saved)
    assert saved.whole
    assert sent == ["part2.bin"]
    assert left == job.part(2).data.nbytes
