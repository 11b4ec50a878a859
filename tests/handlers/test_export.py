"""What is handed over is what was trained, whole and checked, or nothing at all."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict_loader import load

from evac.cli import main
from evac.torch import Checkpointer
from tests.handlers.torch.training import wait_committed


class Tied(torch.nn.Module):
    """As language models have it: the way out is the way in."""

    def __init__(self) -> None:
        super().__init__()
        self.into = torch.nn.Embedding(50, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.other = torch.nn.LayerNorm(8)
        self.out = torch.nn.Linear(8, 50, bias=False)
        self.out.weight = self.into.weight
        self.register_buffer("small", torch.randn(5).to(torch.bfloat16))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("nothing", torch.empty(0, 4))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tied]:
    """A store with one generation of a trained model."""
    folder = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVAC_SOCKET", str(folder / "no.sock"))
        torch.manual_seed(7)
        model = Tied()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with Checkpointer(
            model=model, optimizer=optimizer, job="run", store=f"file://{folder}/store"
        ) as saver:
            model.out(model.norm(model.into(torch.arange(50)))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert saver.stage(1)
            wait_committed(f"file://{folder}/store", 1)
    return folder / "store", model


@pytest.fixture
def export(saved: tuple[Path, Tied], tmp_path: Path) -> Callable[..., int]:
    return lambda *flags: main(["export", str(saved[0]), "--to", str(tmp_path / "to"), *flags])


def equal(ours: dict[str, torch.Tensor], model: Tied, *without: str) -> bool:
    theirs = {key: one for key, one in model.state_dict().items() if key not in without}
    return ours.keys() == theirs.keys() and all(
        ours[key].dtype == theirs[key].dtype and torch.equal(ours[key], theirs[key])
        for key in theirs
    )


def blank(model: Tied) -> dict[str, torch.Tensor]:
    return {key: torch.zeros_like(one) for key, one in model.state_dict().items()}


def test_weights_become_safetensors(
    saved: tuple[Path, Tied], tmp_path: Path, export: Callable[..., int]
) -> None:
    assert export("--format", "safetensors") == 0

    assert [one.name for one in (tmp_path / "to").iterdir()] == ["model.safetensors"]
    assert equal(load_file(tmp_path / "to" / "model.safetensors"), saved[1])


def test_large_ones_are_several_files_and_an_index(
    saved: tuple[Path, Tied], tmp_path: Path, export: Callable[..., int]
) -> None:
    assert export("--format", "safetensors", "--shard-bytes", "1000") == 0

    index = json.loads((tmp_path / "to" / "model.safetensors.index.json").read_text())
    files = {path.name for path in (tmp_path / "to").glob("*.safetensors")}
    assert files == set(index["weight_map"].values())
    assert len(files) > 2
    loaded: dict[str, torch.Tensor] = {}
    for name in files:
        part = load_file(tmp_path / "to" / name)
        assert all(index["weight_map"][key] == name for key in part)
        loaded.update(part)
    assert equal(loaded, saved[1])


def test_tied_weights_are_written_once_where_asked_for_and_ones_are_not_tied(
    saved: tuple[Path, Tied],
    tmp_path: Path,
    export: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert export("--format", "safetensors", "--tied-once") == 0

    assert equal(load_file(tmp_path / "to" / "model.safetensors"), saved[1], "out.weight")
    assert "out.weight left out, tied to into.weight" in capsys.readouterr().out


def test_what_was_written_is_told_to_programs(
    tmp_path: Path, export: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("--format", "safetensors", "--tied-once", "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert told.pop("nbytes") > 1000
    assert told.pop("job").endswith("/run")
    assert told.pop("left_out") == {"out.weight": "tied to into.weight"}
    assert told == {
        "generation": "step-1.1",
        "to": str(tmp_path / "to"),
        "format": "safetensors",
        "weights_only": True,
    }


@pytest.mark.parametrize("weights", [True, False])
def test_plain_dcp_is_what_stock_torch_loads(
    saved: tuple[Path, Tied], tmp_path: Path, export: Callable[..., int], weights: bool
) -> None:
    assert export(*(["--weights-only"] if weights else [])) == 0

    state = {"model": blank(saved[1])}
    with pytest.warns(UserWarning, match=r"torch\.distributed"):
        load(state, checkpoint_id=tmp_path / "to")
    assert equal(state["model"], saved[1])
    assert weights != any((tmp_path / "to").glob("weights/*"))


def test_weights_that_are_all_that_is_whole_are_handed_over(
    saved: tuple[Path, Tied], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    (generation,) = saved[0].glob("*/run/step-1.*")
    to = store / generation.relative_to(saved[0]) / "weights"
    to.mkdir(parents=True)
    for one in (generation / "weights").iterdir():
        (to / one.name).write_bytes(one.read_bytes())
    for pending in to.glob(".metadata-*.pending"):
        pending.rename(to / ".metadata")
    command = ["export", str(store), "--to"]

    assert main([*command, str(tmp_path / "all")]) == 1
    assert main([*command, str(tmp_path / "dcp"), "--weights-only"]) == 0
    assert main([*command, str(tmp_path / "hf"), "--format", "safetensors"]) == 0

    assert not (tmp_path / "all").exists()
    assert equal(load_file(tmp_path / "hf" / "model.safetensors"), saved[1])
    state = {"model": blank(saved[1])}
    with pytest.warns(UserWarning, match=r"torch\.distributed"):
        load(state, checkpoint_id=tmp_path / "dcp")
    assert equal(state["model"], saved[1])


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_a_damaged_byte_leaves_no_directory(
    saved: tuple[Path, Tied], tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    for one in saved[0].rglob("*"):
        if one.is_file():
            to = store / one.relative_to(saved[0])
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(one.read_bytes())
    (body,) = store.glob("*/run/step-1.*/weights/__0_0.distcp")
    data = bytearray(body.read_bytes())
    data[5000] ^= 1
    body.write_bytes(data)

    assert main(["export", str(store), "--to", str(tmp_path / "to"), "--format", form]) == 1

    assert "CRC-32C differs" in capsys.readouterr().err
    assert {one.name for one in tmp_path.iterdir()} == {"store"}


def test_what_is_there_is_not_written_over(
    tmp_path: Path, export: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "to").mkdir()

    assert export() == 2

    assert "does not exist yet" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_a_place_that_cannot_be_written_is_an_error_that_names_it(
    saved: tuple[Path, Tied], tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    for to in (tmp_path / "file" / "to", Path("/proc/evac/to")):
        assert main(["export", str(saved[0]), "--to", str(to), "--format", form]) == 2
        assert f"evac: --to: {to}: expected a place that can be written" in capsys.readouterr().err


def test_a_full_disk_is_an_error_and_leaves_nothing(
    saved: tuple[Path, Tied], tmp_path: Path
) -> None:
    # A limit on a file's size ends a write as a full disk does: with an error, in the middle.
    script = (
        "import resource, signal, sys; from evac.cli import main; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "export", str(saved[0]), "--to", str(tmp_path / "to")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "File too large" in done.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_to_export_says_in_which_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path), "--to", str(tmp_path / "to")]) == 2

    assert f"no generations in file://{tmp_path}" in capsys.readouterr().err
