"""What there was is found again, whatever the disk or the fd store did; and nothing is thrown away unseen."""

import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.errors import AlreadyRunning
from evacd.workloads.job import Process, Shape, SlotState
from evacd.workloads.keeping import Given, Keeper, Table
from evacd.workloads.keeping.table import MOST
from evacd.workloads.record import JobRecord, SlotRecord, decode, encode

SLOT = SlotRecord(
    inode=(1, 2), unit="root/train", job="train", rank=3, world=4, priority=5, run="r",
    process=Process(6, 7, 8, 9), share=10, arrived=11.5, died=None, newest=Generation(1, 2),
    current=12, numbers=13, number=14, nbytes=4096,
    shape=Shape("a.bin", "layout", 1, "r", 4), reservation=12, state=SlotState.COMPLETE,
    generation=Generation(1, 2),
)  # fmt: skip
# As the first version wrote them; they may lie on any node that is upgraded.
SLOT_OF_0 = (
    '{"inode":[1,2],"unit":"root/train","job":"train","rank":3,"world":4,"priority":5,"run":"r",'
    '"process":{"pid":6,"started":7,"uid":8,"gid":9},"share":10,"arrived":11.5,"died":null,'
    '"newest":{"incarnation":1,"step":2},"current":12,"numbers":13,"number":14,"nbytes":4096,'
    '"shape":{"body":"a.bin","layout":"layout","incarnation":1,"run":"r","world":4},'
    '"reservation":12,"state":"complete","generation":{"incarnation":1,"step":2}}'
)
JOB_OF_0 = (
    '{"unit":"root/train","durable":{"incarnation":1,"step":2},"launches":[[2,[0,1]],[1,[0]]]}'
)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=128)
BIG = st.integers(0, 2**53)


@given(
    run=TEXTS,
    other=TEXTS,
    layout=TEXTS,
    step=BIG,
    pid=st.integers(0, 2**22),
    uid=st.integers(0, 2**32),
)
def test_whatever_may_be_registered_fits_in_a_row_and_comes_back(
    run: str, other: str, layout: str, step: int, pid: int, uid: int
) -> None:
    newest = Generation(2**53, step)
    record = replace(
        SLOT, unit="n" * 63 + "/" + "j" * 63, job="j" * 63, run=run, newest=newest, generation=newest,
        process=Process(pid, 2**62, uid, uid), share=2**62, arrived=1234567.123456, died=7654321.65,
        shape=Shape("b" * 80, layout, 2**53, other, 2**31), nbytes=2**50, number=10**6,
    )  # fmt: skip
    data = encode(record)
    assert len(data) <= MOST
    assert decode(data) == record


@pytest.mark.parametrize("first", [0, 0x10000, 0x800])
def test_so_do_texts_that_can_hardly_be_made_shorter(first: int) -> None:
    drawn = random.Random(1)
    run, other, layout = (
        "".join(chr(first + drawn.randrange(0x800 if first else 32)) for _ in range(128))
        for _ in range(3)
    )
    record = replace(SLOT, run=run, shape=Shape("b" * 80, layout, 2**53, other, 2**31))
    assert len(encode(record)) <= MOST
    assert decode(encode(record)) == record


@given(st.sets(st.integers(0, 5000), max_size=300))
def test_the_ranks_of_a_launch_come_back(ranks: set[int]) -> None:
    job = JobRecord("u/j", None, ((1, tuple(sorted(ranks))),))
    assert decode(encode(job)) == job


class Store:
    """An fd store that remembers what it was told."""

    waiting = 0

    def __init__(self) -> None:
        self.pushed: list[str] = []
        self.removed: list[str] = []

    def push(self, name: str, fd: int) -> None:
        self.pushed.append(name)

    def remove(self, name: str) -> None:
        self.removed.append(name)

    def stop(self) -> None:
        """Nothing waits."""


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("evac-slot")
    yield fd
    os.close(fd)


def of(fd: int, **changes: object) -> SlotRecord:
    stat = os.fstat(fd)
    return replace(SLOT, inode=(stat.st_dev, stat.st_ino), **changes)  # type: ignore[arg-type]  # by name


def written(path: Path, *records: SlotRecord) -> None:
    path.parent.mkdir(exist_ok=True)
    table = Table(path, boot="boot")
    for number, record in enumerate(records):
        table.put(number, encode(record))
    table.close()


def opened(*paths: Path, given: list[Given] | None = None) -> tuple[Keeper, Store]:
    store = Store()
    keeper = Keeper(*paths, boot="boot", fds=store, given=given or [])
    keeper.open()
    return keeper, store


def found(keeper: Keeper) -> list[bool]:
    """Whether each slot of before came with its memory."""
    slots = keeper.slots()
    for _, _, fd in slots:
        if fd is not None:
            os.close(fd)
    return [fd is not None for _, _, fd in slots]


def test_rows_of_the_first_version_are_read() -> None:
    assert decode(SLOT_OF_0.encode()) == SLOT
    assert decode(JOB_OF_0.encode()) == JobRecord(
        "root/train", Generation(1, 2), ((2, (0, 1)), (1, (0,)))
    )


def test_a_field_that_is_not_known_or_not_there_costs_nothing() -> None:
    document = json.loads(encode(SLOT))
    assert decode(json.dumps({**document, "newer": [1]}).encode()) == SLOT
    document["process"]["newer"] = document["shape"]["newer"] = 1
    assert decode(json.dumps(document).encode()) == SLOT
    for name in ("share", "priority", "died", "newest", "generation"):
        older = {key: value for key, value in document.items() if key != name}
        assert isinstance(decode(json.dumps(older).encode()), SlotRecord)


def test_memory_is_known_by_itself_and_not_by_its_name(tmp_path: Path, memory: int) -> None:
    other = os.memfd_create("evac-slot")
    written(tmp_path / "t", of(memory))
    keeper, store = opened(tmp_path / "t", given=[Given("s0", other), Given("s0", os.dup(memory))])
    assert found(keeper) == [True]
    # With the name the right one would go, too.
    assert store.removed == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(other)
    keeper.close()


def test_a_row_whose_memory_is_another_waits_for_its_owner(tmp_path: Path, memory: int) -> None:
    other = os.memfd_create("evac-slot")
    written(tmp_path / "t", of(memory))
    keeper, store = opened(tmp_path / "t", given=[Given("m1", other)])
    assert found(keeper) == [False]
    assert len(keeper.waiting()) == 1
    assert store.removed == ["m1"]
    keeper.close()


@pytest.mark.parametrize("harm", ["truncated", "flipped", "another boot", "unreadable"])
def test_nothing_is_thrown_away_where_the_table_cannot_be_trusted(
    tmp_path: Path, memory: int, harm: str
) -> None:
    path = tmp_path / "t"
    written(path, of(memory))
    if harm == "truncated":
        os.truncate(path, 40)
    elif harm == "flipped":
        with path.open("r+b") as file:
            file.seek(20)
            file.write(b"x")
    elif harm == "another boot":
        path.unlink()
        Table(path, boot="another").close()
    else:
        path.unlink()
        path.mkdir()
    keeper, store = opened(path, given=[Given("m1", os.dup(memory))])

    slots = found(keeper)

    assert store.removed == []
    # What of the rows is whole counts all the same.
    assert slots == ([True] if harm == "flipped" else [])
    assert keeper.shown()["unplaced"] == (0 if harm == "flipped" else 1)
    # Until nobody comes any more.
    keeper.let_go()
    assert store.removed == ([] if harm == "flipped" else ["m1"])
    keeper.close()


def test_another_daemon_with_the_same_table_is_told(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", boot="boot")
    with pytest.raises(AlreadyRunning):
        opened(tmp_path / "t")
    table.close()


def test_where_one_place_cannot_be_used_the_next_is(tmp_path: Path, memory: int) -> None:
    (tmp_path / "file").touch()
    written(tmp_path / "run" / "t", of(memory))
    keeper, _ = opened(
        tmp_path / "file" / "t", tmp_path / "run" / "t", given=[Given("m1", os.dup(memory))]
    )
    assert found(keeper) == [True]
    assert keeper.shown()["remembers"]
    keeper.close()


def moving(folder: Path) -> tuple[Keeper, Path, Path]:
    """As a daemon begins whose sockets lie in memory: see `evacd.parts`."""
    run, state = folder / "run" / "slots.table", folder / "state" / "slots.table"
    former = None if run.exists() else state
    return Keeper(run, state, boot="boot", fds=Store(), former=former), run, state


def test_a_table_on_a_disk_is_moved_into_memory_once(tmp_path: Path, memory: int) -> None:
    written(tmp_path / "state" / "slots.table", of(memory), of(memory, rank=1))
    keeper, run, state = moving(tmp_path)
    keeper.open()
    assert sorted(record.rank for _, record, _ in keeper.slots()) == [1, 3]
    assert (run.exists(), state.exists()) == (True, False)
    keeper.close()
    # What lies there again is of nobody that counts.
    written(state, *[of(memory, rank=rank) for rank in range(9)])
    again, _, _ = moving(tmp_path)
    again.open()
    assert len(again.slots()) == 2
    again.close()


def test_another_daemons_table_is_not_moved(tmp_path: Path, memory: int) -> None:
    written(tmp_path / "state" / "slots.table", of(memory))
    its = Table(tmp_path / "state" / "slots.table", boot="boot")
    keeper, run, state = moving(tmp_path)
    with pytest.raises(AlreadyRunning):
        keeper.open()
    assert (run.exists(), state.exists()) == (False, True)
    its.close()


def killed_at(move: int, folder: Path) -> bool:
    """Whether whoever moves the table is killed right before so many touches of files; else it is through."""
    child = os.fork()
    if child == 0:
        left = move

        def here(event: str, _: object) -> None:
            nonlocal left
            if event.startswith(("os.", "open", "mmap.")) and left >= 0:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(here)
        try:
            moving(folder)[0].open()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def test_a_table_is_moved_whole_or_not_at_all_wherever_its_mover_is_killed(
    tmp_path: Path, memory: int
) -> None:
    records = [of(memory, rank=rank) for rank in range(40)]
    for move in range(1000):
        folder = tmp_path / str(move)
        folder.mkdir()
        written(folder / "state" / "slots.table", *records)
        killed = killed_at(move, folder)
        keeper, _, _ = moving(folder)
        keeper.open()
        assert sorted(record.rank for _, record, _ in keeper.slots()) == list(range(40))
        keeper.close()
        if not killed:
            break
    assert not killed
    assert move > 5
