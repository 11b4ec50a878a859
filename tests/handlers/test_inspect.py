"""What `evac ls` and `evac verify` say about real folders, whole and torn."""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evac import inspect
from evac.commit import finish, put_body, put_manifest
from evac.errors import ConfigError, StoreRejected
from evac.generation import METADATA, Generation
from evac.store import Store, open_store
from tests.handlers.commit.made import METADATA_BYTES, PREFIX, body_of, commit, manifest

OLD, NEW = Generation(incarnation=1, step=10), Generation(incarnation=2, step=20)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}/store")


def run(command: str, *words: str) -> int:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add, do = {
        "ls": (inspect.add_ls_arguments, inspect.ls),
        "verify": (inspect.add_verify_arguments, inspect.verify),
    }[command]
    add(parser)
    return do(parser.parse_args(words))


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


async def tear(store: Store, generation: Generation, *, ranks: int = 1, world: int = 2) -> None:
    """All bodies, but only some manifests: cut off in mid-commit."""
    for rank in range(world):
        made = manifest(generation, rank, world)
        await put_body(
            store, PREFIX, generation, made.files[0].name, memoryview(body_of(rank)), rank=rank
        )
        if rank < ranks:
            await put_manifest(store, PREFIX, made, metadata=METADATA_BYTES)


def test_ls_shows_whole_and_torn_with_the_reason(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(commit(store, OLD))
    asyncio.run(tear(store, NEW))

    assert run("ls", store.url) == 0

    header, new, old = capsys.readouterr().out.splitlines()
    assert header.split() == ["JOB", "GENERATION", "STATE", "RANKS", "SIZE"]
    assert new.split()[:4] == [PREFIX, "step-20.2", "torn", "1/2"]
    assert new.endswith("no manifest of rank 1")
    assert old.split()[:4] == [PREFIX, "step-10.1", "complete", "2/2"]
    assert new.index("torn") == old.index("complete") == header.index("STATE")


def test_ls_of_a_job_with_nothing_whole_is_a_failure(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(tear(store, NEW))

    assert run("ls", store.url, "--json") == 1

    [job] = said(capsys)["jobs"]
    [one] = job["generations"]
    assert job["job"] == PREFIX
    assert (one["generation"], one["state"], one["ranks"], one["world"]) == (
        "step-20.2", "torn", [0], 2,
    )  # fmt: skip


def test_ls_of_a_folder_that_is_missing_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        run("ls", f"file://{tmp_path}/mistyped")


def test_a_jobs_peers_that_nobody_names_are_not_called_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("EVAC_PEERS", raising=False)

    for command in ("ls", "verify"):
        with pytest.raises(ConfigError, match=r"^EVAC_PEERS: evac://job: expected the job's other"):
            run(command, "evac://job")


def test_ls_of_an_empty_store_says_so_and_fails(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").mkdir(exist_ok=True)
    assert run("ls", store.url) == 1
    assert capsys.readouterr().out == f"no generations in {store.url}\n"
    assert run("ls", store.url, "--job", "user/job") == 1
    assert capsys.readouterr().out == f"no generations in {store.url} under user/job\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_that_this_user_may_not_read_is_not_called_empty(
    store: Store, tmp_path: Path
) -> None:
    asyncio.run(commit(store, OLD))
    owner = tmp_path / "store" / PREFIX.split("/")[0]
    owner.chmod(0o700)
    for one in (tmp_path / "store", tmp_path, tmp_path.parent, tmp_path.parent.parent):
        one.chmod(0o755)
    # What is imported lazily may lie where only root reads.
    script = (
        "import asyncio, os, sys, evac.store.local, evac.commit; from evac.cli import main\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); sys.exit(main(sys.argv[1:]))"
    )

    for command in ("ls", "verify"):
        done = subprocess.run(
            [sys.executable, "-c", script, command, store.url],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        said = f"no generations in {store.url} that this user may read: {owner} is closed to it\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, said, "")


def test_ls_keeps_to_one_job(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(commit(store, OLD))
    asyncio.run(commit(store, NEW, prefix="user/other"))

    assert run("ls", store.url, "--job", "user/other/", "--json") == 0
    assert [job["job"] for job in said(capsys)["jobs"]] == ["user/other"]


def test_a_folder_is_as_good_as_its_url(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(commit(store, OLD))

    assert run("ls", str(tmp_path / "store"), "--json") == 0
    assert said(capsys)["store"] == store.url


@pytest.mark.parametrize(
    "words", [[""], ["s4://bucket"], ["/x", "--generation", "latest"], ["/x", "--generation", ""]]
)
def test_wrong_usage_says_what_was_expected(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        run("verify", *words)


def test_a_job_outside_of_the_store_is_refused(store: Store) -> None:
    with pytest.raises(StoreRejected):
        run("ls", store.url, "--job", "../other")


def test_verify_reads_the_newest_whole_one_and_names_what_it_passed_over(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(commit(store, OLD))
    asyncio.run(tear(store, NEW))

    assert run("verify", store.url) == 0

    text = capsys.readouterr().out
    assert f"{PREFIX}: passed over step-20.2: torn: no manifest of rank 1\n" in text
    assert f"{PREFIX}: step-10.1, 2/2 ranks, " in text
    assert text.endswith("ok, every checksum matches\n")


def test_verify_finds_a_flipped_byte(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(commit(store, OLD))
    body = tmp_path / "store" / PREFIX / OLD.directory / "__1_0.distcp"
    data = bytearray(body.read_bytes())
    data[500] ^= 1
    body.write_bytes(data)

    assert run("verify", store.url, "--json") == 1
    [job] = said(capsys)["jobs"]
    assert not job["ok"]
    assert job["problems"] == [
        {
            "key": f"{PREFIX}/{OLD.directory}/__1_0.distcp",
            "reason": "CRC-32C differs in 1 of 1 chunks, the first at byte 0",
        }
    ]
    assert run("verify", store.url) == 1
    assert "CORRUPT\n" in capsys.readouterr().out


def test_verify_of_a_torn_or_missing_generation_fails(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", store.url) == 1
    asyncio.run(tear(store, NEW))

    assert run("verify", store.url) == 1
    assert "NOTHING COMPLETE" in capsys.readouterr().out
    assert run("verify", store.url, "--generation", "step-20.2") == 1
    assert "TORN" in capsys.readouterr().out
    assert run("verify", store.url, "--generation", "step-9.9") == 1


def test_verify_can_finish_what_a_killed_writer_left(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(tear(store, NEW, ranks=2))
    assert run("verify", store.url) == 1
    capsys.readouterr()

    assert run("verify", store.url, "--finish", "--json") == 0

    [job] = said(capsys)["jobs"]
    assert (job["ok"], job["finished"]) == (True, ["step-20.2"])
    assert asyncio.run(store.get(f"{PREFIX}/{NEW.directory}/{METADATA}")) == METADATA_BYTES
    assert asyncio.run(finish(store, PREFIX, NEW))


def test_verify_of_one_generation_asks_for_the_job_where_there_are_many(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(commit(store, OLD))
    asyncio.run(commit(store, OLD, prefix="user/other"))

    with pytest.raises(ConfigError, match="user/other"):
        run("verify", store.url, "--generation", "step-10.1")
    assert run("verify", store.url, "--generation", "step-10.1", "--job", PREFIX) == 0
    assert run("verify", store.url, "--json") == 0
    assert capsys.readouterr().out.count('"ok": true') == 2


def test_verify_passes_over_a_newer_generation_of_weights_only(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(commit(store, OLD))
    asyncio.run(commit(store, NEW, kind="weights"))

    assert run("verify", store.url) == 0
    assert "passed over step-20.2: complete, weights only" in capsys.readouterr().out
