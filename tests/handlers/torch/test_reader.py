"""`StoreReader` alone: what it reads, and that nothing is loaded that is not right."""

import hashlib
import io
import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from evac.commit import Problem, chunk_sums
from evac.generation import METADATA, Generation, manifest_name
from evac.manifest import CHUNK, File, Manifest
from evac.store.local import LocalStore
from evac.torch import Checkpointer
from evac.torch.damage import Unsound
from evac.torch.layout import frame
from evac.torch.parting import PIECE_CHUNKS
from evac.torch.reader import StoreReader, block
from evac.torch.reader_archive import payload
from evac.torch.reader_bodies import Contents, Span, look, opened
from tests.handlers.torch.training import wait_committed

ROWS, ROW = 6144, 1024
BODY = "weights/__0_0.distcp"
BIG, SMALL = "model.0.weight", "model.1.weight"


class Counting(LocalStore):
    """Notes what is read."""

    def __init__(self, root: str, reads: list[Span]) -> None:
        super().__init__(root)
        self._reads = reads

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        self._reads.append(Span(key.rpartition("/")[2], offset, into.nbytes))
        return await super().read(key, offset, into)


class Shard(DefaultLoadPlanner):
    """A rank that holds a part of one tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.tensor = tensor

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return self.tensor

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        assert tensor is not None


def network() -> torch.nn.Module:
    big = torch.nn.Linear(ROW, ROWS, bias=False)  # six chunks
    return torch.nn.Sequential(big, torch.nn.Linear(ROWS, 3, bias=False))


def saved(store: str) -> tuple[torch.nn.Module, Path]:
    """A model, committed, and the folder in which it lies."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    with Checkpointer(model=model, optimizer=optimizer, job="run", store=store, every=1) as saver:
        assert saver.step(1), saver.stats
        wait_committed(store, 1)
    (folder,) = Path(store.removeprefix("file://")).glob("*/run/step-1.*")
    return model, folder


def contents(folder: Path) -> Contents:
    root, prefix = folder.parents[2], "/".join(folder.parts[-3:-1])
    generation = Generation.parse(folder.name)
    assert generation
    found = look(f"file://{root}", prefix, generation)
    assert isinstance(found, Contents), found
    return found


def reader(folder: Path, reads: list[Span]) -> StoreReader:
    return StoreReader(partial(Counting, str(folder.parents[2]), reads), "it", contents(folder))


def load_alone(tree: dict[str, object], one: StoreReader) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(tree, storage_reader=one)


def blank() -> dict[str, torch.Tensor]:
    return {key: torch.zeros_like(value) for key, value in network().state_dict().items()}


def rows(first: int, count: int) -> LoadPlan:
    """What a rank needs that holds *count* rows of the large tensor."""
    wanted = ReadItem(
        type=LoadItemType.TENSOR,
        dest_index=MetadataIndex(BIG, torch.Size((first, 0))),
        dest_offsets=torch.Size((0, 0)),
        storage_index=MetadataIndex(BIG, torch.Size((0, 0))),
        storage_offsets=torch.Size((first, 0)),
        lengths=torch.Size((count, ROW)),
    )
    return LoadPlan([wanted])


def test_dcp_loads_through_it_and_every_byte_is_read_once(store: str) -> None:
    model, folder = saved(store)
    reads: list[Span] = []
    one = reader(folder, reads)
    tree = blank()
    load_alone({"model": tree}, one)

    for key, value in model.state_dict().items():
        assert torch.equal(tree[key], value)
    nbytes = (folder / BODY).stat().st_size
    reads.sort(key=lambda span: span.offset)
    for before, after in pairwise(reads):
        assert before.offset + before.nbytes <= after.offset
    assert {span.offset % CHUNK for span in reads} == {0}
    assert max(span.nbytes for span in reads) == PIECE_CHUNKS * CHUNK
    assert one.nbytes == sum(span.nbytes for span in reads) <= nbytes


def test_a_few_rows_are_read_with_the_chunks_they_lie_in_and_no_others(store: str) -> None:
    model, folder = saved(store)
    reads: list[Span] = []
    one = reader(folder, reads)
    plan = rows(3072, 8)
    one.prepare_local_plan(plan)

    info = one.metadata.storage_data[MetadataIndex(BIG, torch.Size((0, 0)))]
    start, end = info.offset + 3072 * ROW * 4, info.offset + info.length
    # The archive's head, the rows (at most a page behind where they would lie without it), its tail.
    allowed = {
        at // CHUNK for at in (info.offset, start, start + 8 * ROW * 4 + 4096, end - 4096, end - 1)
    }
    read = {
        chunk
        for span in reads
        for chunk in range(span.offset // CHUNK, -(-(span.offset + span.nbytes) // CHUNK))
    }
    assert start // CHUNK in read
    assert read <= allowed
    assert len(read) < 6

    shard = Shard(torch.zeros(8, ROW))
    one.read_data(plan, shard)
    assert torch.equal(shard.tensor, model.state_dict()["0.weight"][3072:3080])


@pytest.mark.parametrize("at", [0, CHUNK - 1, 3 * CHUNK + 5, 6 * CHUNK - 7])
def test_one_wrong_bit_anywhere_and_no_tensor_is_touched(store: str, at: int) -> None:
    _, folder = saved(store)
    with (folder / BODY).open("r+b") as body:
        body.seek(at)
        (old,) = body.read(1)
        body.seek(at)
        body.write(bytes([old ^ 16]))
    tree = blank()

    with pytest.raises(CheckpointException) as raised:
        load_alone({"model": tree}, reader(folder, []))

    ((cause, _),) = raised.value.failures.values()
    assert isinstance(cause, Unsound)
    (problem,) = cause.problems
    assert problem.key.endswith(f"/{BODY}")
    chunk = at // CHUNK
    assert problem.reason.startswith(f"CRC-32C differs in chunk {chunk + 1} of ")
    assert problem.reason.endswith(f"from byte {chunk * CHUNK}")
    assert not any(value.any() for value in tree.values())


def test_a_wrong_bit_in_rows_of_another_rank_is_not_ours_to_find(store: str) -> None:
    _, folder = saved(store)
    with (folder / BODY).open("r+b") as body:
        body.seek(3 * CHUNK + 5)
        body.write(b"\xff" * 8)
    reader(folder, []).prepare_local_plan(rows(0, 8))
    with pytest.raises(Unsound, match=r"chunk 4 of"):
        reader(folder, []).prepare_local_plan(rows(0, ROWS))


def test_a_body_that_became_shorter_is_told(store: str) -> None:
    _, folder = saved(store)
    one = reader(folder, [])
    with (folder / BODY).open("r+b") as body:
        body.truncate(2 * CHUNK + 100)
    with pytest.raises(Unsound, match=rf"ends at byte {2 * CHUNK + 100} of"):
        one.prepare_local_plan(rows(0, ROWS))


def test_what_no_manifest_vouches_for_is_not_read(store: str) -> None:
    _, folder = saved(store)
    found = contents(folder)
    reads: list[Span] = []
    for bodies in ({}, {BODY: replace(found.bodies[BODY], nbytes=100)}):
        made = partial(Counting, str(folder.parents[2]), reads)
        one = StoreReader(made, "it", replace(found, bodies=bodies))
        with pytest.raises(Unsound, match="named by no manifest"):
            one.prepare_local_plan(rows(0, 1))
    assert not reads


def test_archives_of_stock_torch_are_loaded_as_stock_torch_does(tmp_path: Path) -> None:
    folder = tmp_path / "me" / "run" / "step-1.1"
    # Neither in the order of its memory, nor as long as its storage.
    tree = {
        "turned": torch.arange(12.0).reshape(3, 4).t(),
        "plain": torch.arange(5, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "number": torch.tensor(7),
        "text": "here",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(tree, storage_writer=FileSystemWriter(folder, sync_files=False))
    (body,) = folder.glob("*.distcp")
    metadata = (folder / METADATA).read_bytes()
    data = body.read_bytes()
    manifest = Manifest(
        job="run",
        run="",
        generation=Generation(1, 1),
        rank=0,
        world=1,
        layout="",
        files=(File(body.name, len(data), chunk_sums(memoryview(data))),),
        metadata_nbytes=len(metadata),
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
    )
    (folder / manifest_name(0)).write_bytes(manifest.encode())

    loaded: dict[str, object] = {
        key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else ""
        for key, value in tree.items()
    }
    load_alone(loaded, reader(folder, []))

    assert loaded["text"] == "here"
    for key, value in tree.items():
        if isinstance(value, torch.Tensor):
            now = loaded[key]
            assert isinstance(now, torch.Tensor)
            assert torch.equal(now, value), key


def test_stock_torch_reads_what_it_reads(store: str) -> None:
    model, folder = saved(store)
    tree = blank()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load({"model": tree}, storage_reader=FileSystemReader(folder))
    assert torch.equal(tree["0.weight"], model.state_dict()["0.weight"])


def test_what_went_wrong_travels_between_ranks() -> None:
    sent = Unsound("step 1", (Problem("a/b", "torn"), Problem("a/c", "short")))
    got = pickle.loads(pickle.dumps(sent))
    assert str(got) == str(sent) == "step 1: a/b: torn; a/c: short"
    assert got.problems == sent.problems


def test_a_generation_that_is_gone_is_a_problem_not_an_error(tmp_path: Path) -> None:
    found = look(f"file://{tmp_path}", "me/run", Generation(1, 1))
    assert isinstance(found, tuple)
    (problem,) = found
    assert problem.key == "me/run/step-1.1"
    assert opened(f"file://{tmp_path}").url == f"file://{tmp_path}"


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint16]
SHAPES = st.lists(st.integers(0, 5), max_size=4)


@given(st.sampled_from(DTYPES), SHAPES)
def test_the_elements_of_every_frame_are_found(dtype: torch.dtype, sizes: list[int]) -> None:
    shape = torch.Size(sizes)
    prefix, suffix = frame(dtype, shape)
    nbytes = shape.numel() * dtype.itemsize
    archive = memoryview(prefix + bytes(nbytes) + suffix)
    assert payload(archive, shape, nbytes) == len(prefix)


def turned(value: torch.Tensor) -> torch.Tensor:
    return value.t()


def part(value: torch.Tensor) -> torch.Tensor:
    return torch.cat([value, value])[1:3]


def conjugate(value: torch.Tensor) -> torch.Tensor:
    return torch.complex(value, value).conj()


def parameter(value: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(value)


@pytest.mark.parametrize("other", [turned, part, conjugate, parameter])
def test_elements_that_lie_in_another_way_are_left_to_torch(
    other: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    value = other(torch.arange(6.0).reshape(2, 3))
    stream = io.BytesIO()
    torch.save(value, stream)
    assert payload(stream.getbuffer(), value.shape, value.nbytes) is None


@given(st.binary(max_size=300))
def test_bytes_that_are_no_archive_have_no_elements(data: bytes) -> None:
    assert payload(memoryview(data), (2,), 8) is None


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    shape = draw(st.lists(st.integers(1, 5), max_size=3))
    offsets = [draw(st.integers(0, size - 1)) for size in shape]
    lengths = [draw(st.integers(0, s - o)) for s, o in zip(shape, offsets, strict=True)]
    return shape, offsets, lengths


@given(blocks())
def test_a_block_reaches_from_its_first_to_its_last_element(
    given_: tuple[Sequence[int], Sequence[int], Sequence[int]],
) -> None:
    shape, offsets, lengths = given_
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for dim, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        numbers = numbers.narrow(dim, offset, length)
    begin, end = block(shape, offsets, lengths)
    if numbers.numel():
        assert (begin, end) == (int(numbers.min()), int(numbers.max()) + 1)
    else:
        assert begin == end
