import json
import logging
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint

from evac.segment import SlotState
from evac.torch import Checkpointer
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import Run, digest


def load(client: FakeClient, number: int, folder: Path, shape: dict[str, Any]) -> dict[str, Any]:
    """What a stock `dcp.load` makes of a slot, read into *shape*."""
    folder.mkdir()
    (folder / "weights").mkdir()
    for file in json.loads(client.descriptor(number))["files"]:
        end = file["offset"] + file["nbytes"]
        (folder / file["name"]).write_bytes(client.body(number)[file["offset"] : end])
    (folder / ".metadata").write_bytes(client.metadata(number))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_checkpoint(shape, checkpoint_id=folder)
    return shape


def blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, dict):
        return {key: blank(one) for key, one in value.items()}
    if isinstance(value, list):
        return [blank(one) for one in value]
    return value


def stock(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": dict(model_state), "optimizer": dict(optimizer_state)}


@pytest.fixture
def client(store: str) -> FakeClient:
    return FakeClient([store])


def test_stock_dcp_load_reads_what_was_staged(client: FakeClient, tmp_path: Path) -> None:
    run = Run()
    saver = run.saver(client=client.as_client())
    for step in (1, 2):
        run.train()
        assert saver.stage(step)
    now = stock(run.model, run.optimizer)

    assert digest(load(client, 1, tmp_path / "x", blank(now))) == digest(now)


def test_header_and_descriptor_tell_what_the_slot_holds(client: FakeClient) -> None:
    run = Run()
    run.train()
    run.saver(client=client.as_client()).step(7)

    header = client.header(0)
    assert (header.state, header.step, header.incarnation) == (SlotState.COMPLETE, 7, 1)
    items = json.loads(client.descriptor(0))["items"]
    assert {"model.0.weight", "optimizer.state.0.weight.exp_avg", "evac.rank0"} <= {
        item["name"] for item in items
    }
    assert client.reservations[0]["body"] == "__0_0.distcp"
    assert client.kept == [(0, 7)]


def test_staging_changes_nothing(client: FakeClient) -> None:
    run = Run()
    saver = run.saver(client=client.as_client())

    def everything() -> str:
        grads = [p.grad for p in run.model.parameters()]
        state: Any = np.random.get_state()
        return digest([run.digest(), grads, random.getstate(), list(state), run.optimizer.defaults])

    for before_first_step in (True, False):
        if not before_first_step:
            run.train()
        before = everything()
        assert saver.stage(1) is not before_first_step
        assert everything() == before
    assert saver.stats.staged == 1


def test_what_was_staged_keeps_its_values_when_training_goes_on(
    client: FakeClient, tmp_path: Path
) -> None:
    run = Run()
    saver = run.saver(client=client.as_client())
    run.train()
    saver.stage(1)
    then = digest(stock(run.model, run.optimizer))
    run.train()

    shape = blank(stock(run.model, run.optimizer))
    assert digest(load(client, 0, tmp_path / "x", shape)) == then


class Odd(torch.nn.Module):
    """Tensors of every inconvenient kind."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Parameter(torch.randn(6, 4).t())
        self.brief = torch.nn.Parameter(torch.randn(5).bfloat16())
        self.tied = torch.nn.Linear(4, 4, bias=False)
        self.same = torch.nn.Linear(4, 4, bias=False)
        self.same.weight = self.tied.weight
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("none", torch.empty(0, 2))
        self.register_buffer("slice", torch.arange(20.0)[3:17:2])
        self.note = "x"

    def get_extra_state(self) -> dict[str, str]:
        return {"note": self.note}

    def set_extra_state(self, state: dict[str, str]) -> None:
        self.note = state["note"]

    def forward(self) -> torch.Tensor:
        total = self.wide.sum() + self.brief.float().sum() + self.tied.weight.square().sum()
        assert isinstance(total, torch.Tensor)
        return total


def test_strided_scalar_bf16_tied_and_empty_tensors_and_growing_objects_are_kept(
    client: FakeClient, tmp_path: Path
) -> None:
    model = Odd()
    optimizer = torch.optim.AdamW(model.parameters())
    saver = Checkpointer(model=model, optimizer=optimizer, job="odd", client=client.as_client())
    for step in (1, 2, 3):
        model().backward()
        optimizer.step()
        model.note = "y" * 1000 * step
        assert saver.stage(step), saver.stats
        now = stock(model, optimizer)
        read = load(client, step - 1, tmp_path / str(step), blank(now))
        assert digest(read) == digest(now)
        assert read["model"]["_extra_state"] == {"note": model.note}


def test_values_are_read_anew_at_every_stage_even_from_new_tensors(
    client: FakeClient, tmp_path: Path
) -> None:
    run = Run()
    saver = run.saver(client=client.as_client())
    run.train()
    saver.stage(1)
    for parameter in run.model.parameters():
        parameter.data = torch.full_like(parameter, 7.0)
        run.optimizer.state[parameter]["exp_avg"] = torch.full_like(parameter, 8.0)
    assert saver.stage(2)
    now = stock(run.model, run.optimizer)

    read = load(client, 1, tmp_path / "x", blank(now))
    assert digest(read) == digest(now)
    assert set(read["optimizer"]["state"]["0.weight"]["exp_avg"].unique().tolist()) == {8.0}


def test_an_optimizer_of_another_model_is_a_failure_that_is_told(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    saver = run.saver(client=client.as_client())
    run.train()
    assert saver.stage(1)
    run.model[3] = torch.nn.Linear(32, 1)  # type: ignore[operator] # a Sequential
    assert not saver.stage(2)
    assert "param group 0 holds a parameter that is not the model's" in caplog.text
    assert saver.stats.failed == 1


def test_a_slot_is_used_again_and_holds_the_new_generation_alone(
    client: FakeClient, tmp_path: Path
) -> None:
    run = Run()
    saver = run.saver(client=client.as_client(), slots=1)
    run.train()
    saver.stage(1)
    client.free(0)
    run.train()
    assert saver.stage(2)
    now = stock(run.model, run.optimizer)

    assert digest(load(client, 0, tmp_path / "x", blank(now))) == digest(now)
    assert client.header(0).step == 2


# torch.compile imports parts of torch that torch itself has deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_keys_are_those_that_torch_gives_for_a_compiled_model(
    client: FakeClient, tmp_path: Path
) -> None:
    run = Run()
    run.train()
    wrapped = torch.compile(run.model)
    assert isinstance(wrapped, torch.nn.Module)
    saver = Checkpointer(model=wrapped, optimizer=run.optimizer, job="c", client=client.as_client())
    assert saver.stage(1), saver.stats
    now = stock(run.model, run.optimizer)
    assert digest(load(client, 0, tmp_path / "x", blank(now))) == digest(now)


def test_a_changed_shape_is_skipped_by_name_and_never_staged_wrong(
    client: FakeClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    saver = run.saver(client=client.as_client())
    run.train()
    assert saver.stage(1)
    last = run.model[3]  # type: ignore[index] # a Sequential
    last.bias.data = torch.zeros(2)

    assert not saver.stage(2)
    assert "model.3.bias was (1,) torch.float32 and is (2,) torch.float32" in caplog.text
    last.bias.data = torch.zeros(1)
    last.register_buffer("new", torch.zeros(1))
    # Laid out anew by now, as it is by now.
    assert saver.stage(3)
    now = stock(run.model, run.optimizer)
    assert digest(load(client, 0, tmp_path / "x", blank(now))) == digest(now)
    last.register_buffer("newer", torch.zeros(1))
    assert not saver.stage(4)
    assert "model.3.newer is new" in caplog.text
    assert (saver.stats.staged, saver.stats.skipped) == (2, 2)
    assert client.kept == [(0, 1), (0, 3)]


def test_no_free_slot_is_a_skip_that_is_counted(client: FakeClient) -> None:
    run = Run()
    saver = run.saver(client=client.as_client(), slots=2)
    run.train()
    assert [saver.stage(n) for n in (1, 2, 3)] == [True, True, False]
    assert "no slot is free" in saver.stats.last_reason
    client.free(0)
    assert saver.stage(4)
    assert (saver.stats.staged, saver.stats.skipped) == (3, 1)


def test_slots_are_reserved_again_when_the_daemon_comes_back(client: FakeClient) -> None:
    run = Run()
    saver = run.saver(client=client.as_client())
    run.train()
    saver.stage(1)
    client.connected = False
    assert not saver.stage(2)
    client.connected = True
    client.restart()
    assert saver.stage(3)
    first, second = client.reservations
    assert first == second


def test_a_refused_reservation_is_told_once_and_tried_again(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.refuses = "budget is spent"
    run = Run()
    saver = run.saver(client=client.as_client())
    run.train()
    assert not saver.stage(1)
    assert not saver.stage(2)
    assert caplog.text.count("budget is spent") == 1
    client.refuses = ""
    assert saver.stage(3)


def test_an_optimizer_without_state_is_waited_for_not_stepped(client: FakeClient) -> None:
    run = Run()
    saver = run.saver(client=client.as_client())
    assert not saver.stage(0)
    assert "no state yet" in saver.stats.last_reason
    assert not run.optimizer.state
    run.train()
    assert saver.stage(1)


def test_an_optimizer_that_never_has_state_is_staged(client: FakeClient, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = Checkpointer(model=model, optimizer=optimizer, job="sgd", client=client.as_client())
    assert saver.stage(1), saver.stats
    now = {"model": model.state_dict()}
    assert digest(load(client, 0, tmp_path / "x", blank(now))) == digest(now)


def test_only_due_steps_are_staged(client: FakeClient) -> None:
    run = Run()
    saver = run.saver(client=client.as_client(), every=2)
    run.train()
    run.optimizer.zero_grad()
    assert [saver.step(n) for n in (1, 2, 3, 4)] == [False, True, False, True]
    assert client.kept == [(0, 2), (1, 4)]


class Moody:
    """A loader whose state cannot be had, or is huge."""

    def __init__(self) -> None:
        self.state: Any = "small"

    def state_dict(self) -> Any:
        if self.state is None:
            raise RuntimeError("not now")
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_whatever_goes_wrong_never_reaches_the_training_loop(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    run, loader = Run(), Moody()
    run.train()
    saver = run.saver(client=client.as_client(), extra={"moody": loader})
    assert saver.stage(1)
    loader.state = None
    assert not saver.stage(2)
    assert not saver.stage(3)
    assert saver.stats.failed == 2
    assert caplog.text.count("is not staged: RuntimeError('not now')") == 1
    loader.state = "x" * 1_000_000
    assert not saver.stage(4)
    assert "set aside" in saver.stats.last_reason
    loader.state = "x" * 10_000
    assert saver.stage(5)


def test_a_state_that_cannot_be_read_at_planning_is_told_and_tried_again(
    client: FakeClient,
) -> None:
    run, loader = Run(), Moody()
    run.train()
    loader.state = None
    saver = run.saver(client=client.as_client(), extra={"moody": loader})
    assert not saver.stage(1)
    assert "not now" in saver.stats.last_reason
    loader.state = "there"
    assert saver.stage(2)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("restores", [True, False])
@pytest.mark.parametrize("bare", [True, False])
def test_without_daemon_and_store_one_warning_names_both_cures(
    caplog: pytest.LogCaptureFixture, restores: bool, bare: bool
) -> None:
    run = Run()
    lacking = {"loader": None, "scheduler": None} if bare else {}
    with run.saver(**lacking) as saver:
        if restores:
            assert saver.restore() is None
        run.train()
        assert [saver.stage(n) for n in (1, 2, 3)] == [False, False, False]
    [said] = warnings_of(caplog)
    assert said.startswith("nothing is saved: no evacd at ")
    assert "no such socket" in said
    assert "start evacd on this node, or pass store=" in said
    assert saver.stats.skipped == 3


@pytest.mark.parametrize("restores", [True, False])
def test_without_daemon_a_store_is_named_in_one_warning(
    caplog: pytest.LogCaptureFixture, store: str, restores: bool
) -> None:
    run = Run()
    with run.saver(store=store) as saver:
        if restores:
            assert saver.restore() is None
        run.train()
        assert [saver.stage(n) for n in (1, 2)] == [True, True]
    [said] = warnings_of(caplog)
    assert f"this process commits to {store} by itself" in said
    assert ("starting at step 0" in said) is restores


def test_what_a_checkpoint_will_lack_is_named_once(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    saver = Checkpointer(
        model=run.model, optimizer=run.optimizer, job="j", client=client.as_client()
    )
    run.train()
    assert [saver.stage(n) for n in (1, 2)] == [True, True]
    assert warnings_of(caplog) == [
        "checkpoints hold no data-loader state, so that a resume would replay data and no LR schedule"
    ]


def test_only_who_says_so_throws_away_what_was_staged(client: FakeClient, store: str) -> None:
    with Run().saver(client=client.as_client()):
        pass
    crashed = FakeClient([store])
    with pytest.raises(KeyError), Run().saver(client=crashed.as_client()):
        raise KeyError
    assert [(one.closed, one.left) for one in (client, crashed)] == [(True, False)] * 2
    thrown_away = FakeClient([store])
    Run().saver(client=thrown_away.as_client()).close(discard=True)
    assert thrown_away.left


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA device")
def test_tensors_on_a_device_are_staged_as_they_were(client: FakeClient, tmp_path: Path) -> None:
    model = torch.nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 512, device="cuda")).sum().backward()
    optimizer.step()
    saver = Checkpointer(model=model, optimizer=optimizer, job="gpu", client=client.as_client())
    assert saver.stage(1), saver.stats
    then = stock(model, optimizer)
    shape = blank(then)
    assert digest(load(client, 0, tmp_path / "x", shape)["model"]["weight"]) == digest(
        then["model"]["weight"].cpu()
    )
