"""Restore from a bucket of a real S3 server, on one rank and on several."""

import asyncio
import itertools
import os
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from evac.commit import State, jobs, survey
from evac.errors import GenerationError
from evac.generation import METADATA, Generation
from evac.manifest import Manifest
from evac.store import Store, open_store
from tests.handlers.torch import ranks, scenes
from tests.handlers.torch.node import node
from tests.handlers.torch.training import Run, wait_committed
from tests.services import azure, gcs
from tests.services.proxy import Fate, Proxy, Rule, proxy
from tests.services.s3 import S3Server, seaweed
from tests.services.skipping import or_skip

BUCKET = "evac-restore"
BODY = "__0_0.distcp"
_numbers = itertools.count()


@pytest.fixture
def other(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A store of another cloud."""
    with or_skip():
        if request.param == "gs":
            with gcs.fake_gcs(tmp_path / "gcs") as google:
                google.make_bucket(BUCKET)
                yield f"gs://{BUCKET}/where?endpoint={google.endpoint}"
        else:
            with azure.azurite(tmp_path / "azure") as microsoft:
                microsoft.make_container(BUCKET)
                for name, value in microsoft.environment.items():
                    monkeypatch.setenv(name, value)
                yield f"az://{BUCKET}/where?endpoint={microsoft.endpoint}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with or_skip(), seaweed(tmp_path_factory.mktemp("seaweed")) as running:
        running.call("create_bucket", Bucket=BUCKET)
        yield running


@pytest.fixture(autouse=True)
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """What opens the bucket; other processes are told."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.environment


@pytest.fixture
def bucket(server: S3Server) -> str:
    """A store's URL, below a prefix of its own."""
    return f"s3://{BUCKET}/some/where-{next(_numbers)}?endpoint={server.endpoint}&region=us-east-1"


@pytest.fixture
def between(server: S3Server) -> Iterator[Proxy]:
    with proxy(server.port) as made:
        yield made


def through(bucket: str, server: S3Server, between: Proxy) -> str:
    """The same bucket, seen through a network that is not always kind."""
    return bucket.replace(server.endpoint, between.endpoint)


def upload(store: str, bucket: str) -> None:
    """Put every file of a local store in the bucket, as it is."""
    root = Path(store.removeprefix("file://"))
    files = {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }

    async def copy(there: Store) -> None:
        for name, data in files.items():
            await there.put(name, memoryview(data))

    asyncio.run(copy(open_store(bucket)))


def download(bucket: str, step: int, folder: Path) -> None:
    """Fetch the files of one generation."""

    async def copy(there: Store) -> dict[str, bytes]:
        keys = [one.key for one in await there.list("") if f"/step-{step}." in one.key]
        return {re.split(r"/step-\d+\.\d+/", key)[1]: await there.get(key) for key in keys}

    (folder / "weights").mkdir(parents=True)
    for name, data in asyncio.run(copy(open_store(bucket))).items():
        (folder / name).write_bytes(data)


def key(bucket: str, step: int, name: str) -> str:
    async def find(there: Store) -> str:
        (found,) = [
            entry.key
            for entry in await there.list("")
            if re.fullmatch(rf".*/step-{step}\.\d+/{re.escape(name)}", entry.key)
        ]
        return found

    return asyncio.run(find(open_store(bucket)))


def damage(bucket: str, step: int, name: str = BODY) -> None:
    """Flip one bit of a file in the bucket."""
    place = key(bucket, step, name)

    async def flip(there: Store) -> None:
        data = bytearray(await there.get(place))
        data[len(data) // 2] ^= 1
        await there.put(place, memoryview(data))

    asyncio.run(flip(open_store(bucket)))


def train(store: str, steps: int) -> Run:
    """Commit that many generations to a local store, on one rank."""
    run = Run()
    with run.saver(store=store) as saver:
        for step in range(1, steps + 1):
            run.train()
            assert saver.step(step), saver.stats
            wait_committed(store, step)
    return run


def elsewhere(rank: int, environment: Mapping[str, str], scene: str, *args: object) -> None:
    """A scene in a process that did not inherit our environment."""
    os.environ.update(environment)
    getattr(scenes, scene)(rank, *args)


def test_a_run_that_committed_to_a_bucket_goes_on_from_there_to_the_bit(bucket: str) -> None:
    saved = Run()
    with saved.saver(store=bucket) as saver:
        for step in (1, 2):
            saved.train()
            assert saver.step(step), saver.stats
    assert saver.stats.failed == 0
    then, losses = saved.digest(), [saved.train() for _ in range(3)]

    run = Run()
    run.train()
    with run.saver(store=bucket) as saver:
        assert saver.restore() == 2
        assert run.digest() == then
        assert [run.train() for _ in range(3)] == losses
        assert saver.step(5), saver.stats
    assert asyncio.run(generations(bucket))[0] == Generation(incarnation=2, step=5)


async def generations(bucket: str) -> list[Generation]:
    """The whole ones, newest first."""
    store = open_store(bucket)
    (prefix,) = await jobs(store)
    found = await survey(store, prefix)
    return [status.generation for status in found if status.state is State.COMPLETE]


def test_what_a_daemon_flushed_to_a_bucket_is_restored_from_the_store_that_it_names(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node(tmp_path, bucket) as daemon:
        monkeypatch.setenv("EVAC_SOCKET", str(daemon.socket))
        saved = Run()
        with saved.saver() as saver:
            saved.train()
            assert saver.step(1), saver.stats
            generation = Generation(incarnation=1, step=1)
            assert daemon.flush(daemon.wait_staged(generation, 1), generation)
        run = Run(seed=99)
        with run.saver() as saver:
            assert saver.restore() == 1
        assert run.digest() == saved.digest()


@pytest.mark.parametrize("other", ["gs", "az"], indirect=True)
def test_other_clouds_are_restored_from_and_walked_back_in(
    store: str, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    then = train(store, 1).digest()
    train(store, 2)
    upload(store, other)
    damage(other, 2)
    run = Run(seed=99)
    assert run.saver(store=other).restore() == 1
    assert run.digest() == then
    assert f"/{BODY}: CRC-32C differs in chunk 1 of 1" in caplog.text


def test_an_empty_bucket_is_step_0_with_a_warning(
    bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Run().saver(store=bucket).restore() is None
    assert "starting at step 0" in caplog.text


def test_a_corrupt_byte_in_the_newest_generation_is_walked_back_from(
    store: str, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    train(store, 2)
    upload(store, bucket)
    damage(bucket, 2)
    then = Run()
    then.train()
    run = Run(seed=99)
    assert run.saver(store=bucket).restore() == 1
    assert run.digest() == then.digest()
    assert f"step-2.1/{BODY}: CRC-32C differs in chunk 1 of 1, from byte 0" in caplog.text
    assert "step 2 (incarnation 1) is not whole: walking back" in caplog.text


def test_every_generation_damaged_is_an_error_and_the_model_is_as_it_was(
    store: str, bucket: str
) -> None:
    train(store, 2)
    upload(store, bucket)
    damage(bucket, 1)
    damage(bucket, 2, METADATA)
    run = Run(seed=99)
    run.train()
    before = run.digest()
    with pytest.raises(GenerationError, match="nothing usable"):
        run.saver(store=bucket).restore()
    assert run.digest() == before


def test_a_generation_that_lacks_only_its_last_file_is_finished_in_the_bucket(
    store: str, bucket: str
) -> None:
    train(store, 1)
    (newest,) = Path(store.removeprefix("file://")).glob("*/run/step-1.*")
    manifest = Manifest.decode((newest / "__0.manifest.json").read_bytes(), where="test")
    (newest / METADATA).rename(newest / f".metadata-{manifest.metadata_sha256}.pending")
    upload(store, bucket)
    assert Run().saver(store=bucket).restore() == 1
    assert key(bucket, 1, METADATA)


@pytest.mark.parametrize("world", [1, 2])
def test_two_ranks_are_restored_at_any_world_size_and_stock_torch_reads_the_same(
    environment: Mapping[str, str], store: str, bucket: str, tmp_path: Path, world: int
) -> None:
    out, again = str(tmp_path / "saved"), str(tmp_path / "again")
    ranks.run(2, scenes.save, store, 2, out)
    upload(store, bucket)
    if world == 1:
        state = (random.getstate(), torch.get_rng_state())
        scenes.restore(0, bucket, 2, again, out)
        random.setstate(state[0])
        torch.set_rng_state(state[1])
        assert "random numbers of 1 are not used" in Path(f"{again}.0").read_text()
    else:
        ranks.run(2, elsewhere, environment, "restore", bucket, 2, again, out)
        assert "afresh" not in "".join(Path(f"{again}.{rank}").read_text() for rank in (0, 1))
    download(bucket, 2, tmp_path / "plain")
    scenes.plain_load(0, str(tmp_path / "plain"), out)


def test_a_corrupt_body_is_walked_back_from_on_all_ranks(
    environment: Mapping[str, str], store: str, bucket: str, tmp_path: Path
) -> None:
    out, again = str(tmp_path / "first"), str(tmp_path / "again")
    ranks.run(2, scenes.save, f"{store}-of-one", 1, out)
    ranks.run(2, scenes.save, store, 2, str(tmp_path / "second"))
    upload(store, bucket)
    damage(bucket, 2, "__1_0.distcp")
    ranks.run(2, elsewhere, environment, "restore", bucket, 1, again, out)
    heard = Path(f"{again}.0").read_text()
    assert "step-2.1/__1_0.distcp: CRC-32C differs in chunk 1 of 1, from byte 0" in heard
    assert heard.count("walking back") == 1
    assert "walking back" not in Path(f"{again}.1").read_text()


def fail_on_one(rank: int, environment: Mapping[str, str], bucket: str) -> None:
    """Rank 1 alone may not read."""
    os.environ.update(environment)
    if rank == 1:
        os.environ["AWS_SECRET_ACCESS_KEY"] = "wrong"
    run = Run(rank=rank, seed=99, ddp=True)
    run.train()
    before = run.digest()
    with pytest.raises(GenerationError, match="nothing usable"):
        run.saver(store=bucket).restore()
    assert run.digest() == before


def test_where_one_rank_cannot_read_no_rank_is_touched(
    environment: Mapping[str, str], store: str, bucket: str, tmp_path: Path
) -> None:
    ranks.run(2, scenes.save, store, 1, str(tmp_path / "saved"))
    upload(store, bucket)
    ranks.run(2, fail_on_one, environment, bucket)


def test_a_model_in_shards_is_restored_on_more_ranks(
    environment: Mapping[str, str], store: str, bucket: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "full")
    ranks.run(2, scenes.sharded, store, out, False)
    upload(store, bucket)
    ranks.run(3, elsewhere, environment, "sharded", bucket, out, True)


def trouble() -> list[Rule]:
    """What a bad day does to reads of bodies, and more than the store's library bears by itself."""
    rules = [Rule(fate, "GET", BODY, times=2) for fate in (Fate.RESET, Fate.HALF)]
    return [*rules, Rule((503, b"<Error><Code>SlowDown</Code></Error>"), "GET", BODY, times=6)]


def test_a_network_that_fails_now_and_then_costs_no_generation(
    server: S3Server, between: Proxy, store: str, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    then = train(store, 2).digest()
    upload(store, bucket)
    between.rules += trouble()
    run = Run(seed=99)
    assert run.saver(store=through(bucket, server, between)).restore() == 2
    assert run.digest() == then
    assert "walking back" not in caplog.text
    assert not any(rule.times for rule in between.rules)


def test_it_costs_none_on_two_ranks_either(
    environment: Mapping[str, str],
    server: S3Server,
    between: Proxy,
    store: str,
    bucket: str,
    tmp_path: Path,
) -> None:
    out, again = str(tmp_path / "saved"), str(tmp_path / "again")
    ranks.run(2, scenes.save, store, 2, out)
    upload(store, bucket)
    between.rules += trouble()
    url = through(bucket, server, between)
    ranks.run(2, elsewhere, environment, "restore", url, 2, again, out)
    assert "walking back" not in Path(f"{again}.0").read_text()
    assert not any(rule.times for rule in between.rules)


def test_a_body_that_nobody_can_read_is_walked_back_from_with_the_stores_reason(
    server: S3Server, between: Proxy, store: str, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    train(store, 2)
    upload(store, bucket)
    between.rules.append(
        Rule((403, b"<Error><Code>AccessDenied</Code></Error>"), "GET", f"step-2.1/{BODY}")
    )
    assert Run(seed=99).saver(store=through(bucket, server, between)).restore() == 1
    assert f"step-2.1/{BODY}: " in caplog.text
    assert "AccessDenied" in caplog.text
