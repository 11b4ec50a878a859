"""Generations of which every checksum is right, and that nobody can make sense of."""

import hashlib
import io
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_loader import load as load_with_dcp
from torch.distributed.checkpoint.state_dict_saver import save as save_with_dcp

from evac.commit import chunk_sums
from evac.errors import GenerationError
from evac.generation import METADATA
from evac.manifest import Manifest
from evac.store.local import LocalStore
from evac.torch.damage import Unsound, sound
from evac.torch.dcp import EvacWriter
from evac.torch.reader import StoreReader
from evac.torch.reader_bodies import Contents, Sums
from tests.handlers.torch import ranks
from tests.handlers.torch.test_dcp import equal, state
from tests.handlers.torch.test_reader import BIG, BODY, SMALL, blank, contents, load_alone, saved
from tests.handlers.torch.test_restore import folder, save
from tests.handlers.torch.training import Run, digest, wait_committed


def index(name: str) -> MetadataIndex:
    return MetadataIndex(name, torch.Size((0, 0)))


def edited(found: Contents, edit: Callable[[Metadata], None]) -> Contents:
    metadata: Metadata = pickle.loads(found.metadata)
    edit(metadata)
    return replace(found, metadata=pickle.dumps(metadata))


def lost(found: Contents, _place: Path) -> Contents:
    """It does not say where one tensor lies."""
    return edited(found, lambda one: one.storage_data.pop(index(BIG)))


def exchanged(found: Contents, _place: Path) -> Contents:
    """It is of another layout, by which each tensor lies where the other one is."""

    def exchange(one: Metadata) -> None:
        data = one.storage_data
        data[index(BIG)], data[index(SMALL)] = data[index(SMALL)], data[index(BIG)]

    return edited(found, exchange)


def shifted(found: Contents, _place: Path) -> Contents:
    """It names places in which no archive starts."""

    def shift(one: Metadata) -> None:
        at = one.storage_data[index(BIG)]
        one.storage_data[index(BIG)] = replace(at, offset=at.offset + 64)

    return edited(found, shift)


def without_frame(found: Contents, place: Path) -> Contents:
    """An archive was never one: zeros were staged, and zeros were summed."""
    data = bytearray((place / BODY).read_bytes())
    info = pickle.loads(found.metadata).storage_data[index(SMALL)]
    data[info.offset : info.offset + info.length] = bytes(info.length)
    (place / BODY).write_bytes(data)
    sums = Sums(len(data), chunk_sums(memoryview(data)))
    return replace(found, bodies={**found.bodies, BODY: sums})


@pytest.mark.parametrize("damage", [lost, exchanged, shifted, without_frame])
def test_what_cannot_be_read_is_damage_and_no_tensor_is_touched(
    store: str, damage: Callable[[Contents, Path], Contents]
) -> None:
    _, place = saved(store)
    found = damage(contents(place), place)
    tree = blank()

    with pytest.raises(CheckpointException) as raised:
        load_alone({"model": tree}, opened(place, found))

    ((cause, _),) = raised.value.failures.values()
    assert isinstance(cause, Unsound)
    assert cause.problems[0].key in (BIG, SMALL)
    assert cause.problems[0].reason.startswith("cannot be read: ")
    assert not any(value.any() for value in tree.values())


def opened(place: Path, found: Contents) -> StoreReader:
    return StoreReader(partial(LocalStore, str(place.parents[2])), "it", found)


def test_a_plan_that_is_no_pickle_is_damage_by_its_name(store: str) -> None:
    _, place = saved(store)
    with pytest.raises(Unsound, match=r"step-1\.1/\.metadata: cannot be read: UnpicklingError"):
        opened(place, replace(contents(place), metadata=b"nothing of the kind"))


# A module that is not here; a class that its module has no more.
GONE = (b"cgone_module\nThing\n.", b"ctests.handlers.torch.training\nGone\n.")


@pytest.mark.parametrize("pickled", GONE)
def test_a_class_that_this_program_lacks_is_no_damage(store: str, pickled: bytes) -> None:
    _, place = saved(store)
    with pytest.raises(GenerationError, match="this program lacks what it was saved with") as told:
        opened(place, replace(contents(place), metadata=pickled))
    assert not isinstance(told.value, Unsound)


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError(), GenerationError("a", "b")]
)
def test_what_an_older_generation_would_not_help_against_is_no_damage(error: Any) -> None:
    with pytest.raises(type(error)) as told, sound("it", "x"):
        raise error
    assert told.value is error


def reseal(place: Path) -> None:
    """Sum everything anew, so that every checksum is right."""
    metadata = (place / METADATA).read_bytes()
    for path in place.glob("__*.manifest.json"):
        manifest = Manifest.decode(path.read_bytes(), where="test")
        files = tuple(
            replace(one, crc32c=chunk_sums(memoryview((place / one.name).read_bytes())))
            for one in manifest.files
        )
        sha256 = hashlib.sha256(metadata).hexdigest()
        sealed = replace(
            manifest,
            files=files,
            layout=sha256,
            metadata_sha256=sha256,
            metadata_nbytes=len(metadata),
        )
        path.write_bytes(sealed.encode())


def overwrite(place: Path, name: str, data: bytes, *, rank: int = 0) -> None:
    """Write over the end of one item, and *data* at its start."""
    manifest = Manifest.decode((place / f"__{rank}.manifest.json").read_bytes(), where="test")
    (item,) = (one for one in manifest.items if one["name"] == name)
    at = item["offset"]
    for one in manifest.files:
        if at < one.nbytes:
            break
        at -= one.nbytes
    with (place / one.name).open("r+b") as body:
        body.seek(at)
        body.write(data + bytes(item["nbytes"] - len(data)))


def no_plan(place: Path) -> None:
    (place / METADATA).write_bytes(b"nothing of the kind")


def no_object(place: Path) -> None:
    (place / METADATA).write_bytes(pickle.dumps({"state_dict_metadata": 7}))


def another_plan(place: Path) -> None:
    metadata: Metadata = pickle.loads((place / METADATA).read_bytes())
    one, other = (MetadataIndex(f"model.{n}.weight", torch.Size((0, 0))) for n in (0, 3))
    data = metadata.storage_data
    data[one], data[other] = data[other], data[one]
    (place / METADATA).write_bytes(pickle.dumps(metadata))


def no_tensor(place: Path) -> None:
    overwrite(place, "model.0.weight", b"")


def no_number(place: Path) -> None:
    overwrite(place, "optimizer.param_groups.0.lr", b"PK")


def block(data: bytes) -> bytes:
    """A rank's own state as it lies in the body: an archive of a tensor whose payload is *data*."""
    stream = io.BytesIO()
    torch.save(torch.frombuffer(bytearray(data), dtype=torch.uint8), stream)
    return stream.getvalue()


def of_the_rank(document: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(document, stream)
    length = struct.pack("<Q", stream.getbuffer().nbytes)
    return (length + stream.getvalue()).ljust(65536, b"\0")


def no_length(place: Path) -> None:
    overwrite(place, "evac.rank0", block(bytes(65536)))


def no_document(place: Path) -> None:
    overwrite(place, "evac.rank0", block(struct.pack("<Q", 99).ljust(65536, b"x")))


def another_document(place: Path) -> None:
    overwrite(place, "evac.rank0", block(of_the_rank(["of", "somebody", "else"])))


@pytest.mark.parametrize(
    "damage",
    [
        no_plan, no_object, another_plan, no_tensor, no_number,
        no_length, no_document, another_document,
    ],
)  # fmt: skip
def test_a_generation_that_nobody_can_make_sense_of_is_walked_back_from(
    store: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 2)
    then = Run()
    then.train()
    damage(folder(store, 2))
    reseal(folder(store, 2))
    run = Run(seed=99)

    assert run.saver(store=store).restore() == 1

    assert run.digest() == then.digest()
    assert "cannot be read: " in caplog.text
    assert "step 2 (incarnation 1) is not whole: walking back" in caplog.text


def one_of_two(rank: int, store: str) -> None:
    """Rank 1 alone cannot read what is its own; both walk back."""
    run = Run(rank=rank, ddp=True)
    digests = {}
    with run.saver(store=store) as saver:
        for step in (1, 2):
            run.train()
            assert saver.step(step), saver.stats
            wait_committed(store, step)
            digests[step] = run.digest()
    dist.barrier()
    if rank == 0:
        overwrite(folder(store, 2), "evac.rank1", block(bytes(65536)), rank=1)
        reseal(folder(store, 2))
    dist.barrier()
    again = Run(rank=rank, seed=99, ddp=True)
    saver = again.saver(store=store)
    assert saver.restore() == 1
    assert again.digest() == digests[1]
    saver.close()


def test_what_one_rank_cannot_read_is_walked_back_from_on_all(store: str) -> None:
    ranks.run(2, one_of_two, store)


def test_where_nothing_can_be_read_it_is_an_error_not_step_0(store: str) -> None:
    save(store, 1)
    no_number(folder(store, 1))
    reseal(folder(store, 1))
    with pytest.raises(GenerationError, match="nothing usable"):
        Run().saver(store=store).restore()


def test_another_model_is_not_walked_back_from(store: str) -> None:
    """An older generation would be of the same model; or of one that was trained no further."""
    save(store, 2)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32))
    before = digest(model.state_dict())
    run = Run()
    run.model, run.optimizer = model, torch.optim.AdamW(model.parameters())
    with pytest.raises(GenerationError, match=r"step 2 .*only the checkpoint has 3\.bias"):
        run.saver(store=store, scheduler=None).restore()
    assert digest(model.state_dict()) == before


def no_note(place: Path) -> None:
    overwrite(place, "note", b"")


def no_weight(place: Path) -> None:
    overwrite(place, "model.w", b"")


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
@pytest.mark.parametrize("damage", [no_note, no_weight, no_plan])
def test_a_dcp_load_passes_over_what_it_cannot_read(
    store: str, damage: Callable[[Path], None]
) -> None:
    with EvacWriter("run", store=store) as writer:
        for step in (1, 2):
            save_with_dcp(state(step), checkpoint_id=f"step-{step}", storage_writer=writer)
        damage(folder(store, 2))
        reseal(folder(store, 2))
        reader, found = writer.reader(), state(0.0)
        if damage is not no_plan:
            with pytest.raises(CheckpointException, match="cannot be read"):
                load_with_dcp(found, storage_reader=reader)
        load_with_dcp(found, storage_reader=reader)
        assert equal(found, state(1))
        assert reader.find() == 1
