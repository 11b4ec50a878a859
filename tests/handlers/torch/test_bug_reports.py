"""Public bug reports of other checkpointers, and the test that holds evac to the right behaviour.

A row's number is for good, and some are not in use. With a * it can be reproduced on CPUs, and has
to name a test.

  1*   pytorch#183878                     what is "synced" was never flushed, and may be dropped
      handlers/store/test_local.py::test_data_is_synced_before_its_name_and_its_name_before_the_answer
      handlers/commit/test_committing.py::test_metadata_appears_only_with_the_last_manifest
  2*   pytorch#183413                     the stager fails the second time it is used
      handlers/torch/test_stage.py::test_a_slot_is_used_again_and_holds_the_new_generation_alone
      handlers/torch/test_stage.py::test_whatever_goes_wrong_never_reaches_the_training_loop
  3*   pytorch#144657                     an asynchronous save holds later values of CPU tensors
      handlers/torch/test_stage.py::test_what_was_staged_keeps_its_values_when_training_goes_on
  4*   pytorch#195982                     the writer keeps all that is staged until the end
      handlers/torch/test_bug_reports.py::test_stages_take_no_memory_but_the_slots
  6*   Megatron-Bridge PR#4678, verl PR#4873  retention deletes the only whole checkpoint
      handlers/commit/test_judge.py::test_retention_keeps_the_newest_complete_ones_and_all_in_flight
      handlers/commit/test_committing.py::test_retention_cut_off_anywhere_leaves_nothing_that_looks_whole
  7*   verl#7952, rllm#897                starts over at step 0 in a folder that is not empty
      handlers/torch/test_restore.py::test_a_marker_without_generations_is_an_error_not_step_0
      handlers/torch/test_restore.py::test_foreign_files_in_the_jobs_place_are_an_error_not_step_0
  8*   transformers#35782, #35525         takes the newest folder though it is not whole
      handlers/torch/test_restore.py::test_a_damaged_newest_generation_is_walked_back_from
      handlers/torch/test_killed.py::test_resumed_it_equals_one_that_was_never_killed
  9*   RLinf PR#1469                      without its data position the stream starts over, unseen
      handlers/torch/test_restore.py::test_what_the_checkpoint_lacks_starts_afresh_and_is_named
      handlers/torch/test_stage.py::test_what_a_checkpoint_will_lack_is_named_once
  12   NeMo-RL#3312                       every checkpoint holds the first one's weights
      handlers/torch/test_complete.py::test_weights_that_do_not_change_although_the_optimizer_steps_are_told
      handlers/torch/test_stage.py::test_values_are_read_anew_at_every_stage_even_from_new_tensors
  15*  DLRover#958, PR#1585               memory is overwritten before it was saved
      handlers/torch/test_stage.py::test_no_free_slot_is_a_skip_that_is_counted
      agent/workloads/test_roster.py::test_a_held_slot_is_not_granted_and_survives_its_owner
  17*  DLRover#1208                       several nodes take themselves for the one that commits
      handlers/commit/test_committing.py::test_many_finishers_at_once_agree
      handlers/commit/test_committing.py::test_the_same_manifest_twice_is_fine_and_another_is_fenced
  18   pytorch-lightning#21406, #20542    a save in a signal handler never ends
      agent/daemon/test_notice.py::test_a_preemption_notice_saves_what_is_staged
  19   ace PR#1398                        the handler never runs in a collective that hangs
      agent/workloads/test_death.py::test_a_stopped_workload_stalls_nobody
      handlers/torch/test_killed.py::test_resumed_it_equals_one_that_was_never_killed
  20   spd#741                            at warm-up, evaluation and compiling nobody listens
      handlers/torch/test_gate.py::test_a_rank_that_hangs_in_a_step_is_spoken_for
      agent/workloads/test_death.py::test_a_stopped_workload_stalls_nobody
  21   pytorch#119856, #68258             torchrun kills all after 30 s
      agent/workloads/test_death.py::test_a_killed_workload_loses_nothing_that_was_staged
  22*  sglang#40723, vllm PR#51317        a killed process leaves its shared memory for ever
      agent/workloads/test_death.py::test_orphans_are_kept_for_their_time_and_not_longer
      agent/workloads/test_death.py::test_nothing_is_left_open_when_workloads_have_come_and_gone
  23*  xtuner PR#1859                     thousands of fds, and some are lost on the way
      handlers/client/test_channel.py::test_too_many_fds_end_it_and_none_stays
      handlers/torch/test_bug_reports.py::test_a_rank_has_as_many_mappings_as_slots_however_many_tensors
  27   sagemaker-python-sdk#3062          nothing has been saved for days, and nobody sees it
      agent/quiet/test_ages.py::test_a_newer_durable_generation_is_as_old_as_its_own_staging
  28   Megatron-LM PR#61, marin PR#8469   staging takes more memory than the node has
      agent/workloads/test_roster.py::test_fewer_slots_are_given_where_memory_is_short
      agent/workloads/test_memory.py::test_more_than_the_machine_has_is_refused_at_once
  29*  KempnerForge#57, data#1437         data is out of step at the second resume in an epoch
      handlers/torch/test_bug_reports.py::test_two_resumes_in_one_epoch_show_each_sample_once
  30   axolotl PR#3948                    (no test: a mount that uploads later is not ours; `evacd check` names such stores)
  31*  DCP overwrite=True                 killed amid an overwrite, old and new values are mixed
      handlers/commit/test_committing.py::test_a_commit_cut_off_anywhere_never_looks_whole_unless_it_is
      handlers/commit/test_judge.py::test_a_mixture_is_complete_only_where_one_side_is
  32*  DCP staging_completion             a stage that failed is reported as done
      handlers/torch/test_stage.py::test_whatever_goes_wrong_never_reaches_the_training_loop
  34*  transformers' JIT sentinel         a mark is written that nobody reads
      handlers/torch/test_restore.py::test_a_torn_first_generation_is_step_0_with_a_warning
      handlers/torch/test_killed.py::test_resumed_it_equals_one_that_was_never_killed
  35*  DCP up to torch 2.13               `.metadata` is synced while it is empty
      handlers/store/test_local.py::test_data_is_synced_before_its_name_and_its_name_before_the_answer
  37*  DCP has no checksum                a flipped bit loads without a word
      handlers/torch/test_reader.py::test_one_wrong_bit_anywhere_and_no_tensor_is_touched
  39*  DCP async_save                     a path that cannot be written is only told to who asks
      handlers/torch/test_own_slots.py::test_a_failing_store_is_told_once_and_training_goes_on
"""

import ast
import re
from pathlib import Path

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from evac.torch import Checkpointer
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import Run, wait_committed

TESTS = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"^ {6}(\S+\.py)::(\w+)$", __doc__ or "", re.MULTILINE)))
ROW = re.compile(r"^ {2}(\d+)(\*?) +\S.*\n((?: {6}.*\n)*)", re.MULTILINE)
# All rows there are, so that none gets lost; these cannot be reproduced on CPUs.
NUMBERS = [*range(1, 5), *range(6, 10), 12, 15, *range(17, 24), *range(27, 33), 34, 35, 37, 39]
NOT_STARRED = {12, 18, 19, 20, 21, 27, 28, 30}


def functions_of(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[f"{f}::{n}" for f, n in NAMED])
def test_the_named_test_exists(file: str, name: str) -> None:
    assert name in functions_of(file)


def test_every_row_is_here_once_and_names_a_test_or_says_why_not() -> None:
    rows = [(int(number), bool(star), below) for number, star, below in ROW.findall(__doc__ or "")]

    assert sorted(number for number, _, _ in rows) == NUMBERS
    assert {number for number, star, _ in rows if not star} == NOT_STARRED
    for number, star, below in rows:
        assert "::test_" in below or (not star and number == 30), number


def test_stages_take_no_memory_but_the_slots() -> None:
    client, run = FakeClient(["file:///x"]), Run()
    saver = run.saver(client=client.as_client(), slots=2)
    for step in range(1, 30):
        run.train()
        assert saver.stage(step)
        client.free(client.kept[-1][0])
    assert len(client.reservations) == 1
    assert {number for number, _ in client.kept} == {0, 1}


def test_a_rank_has_as_many_mappings_as_slots_however_many_tensors() -> None:
    client = FakeClient(["file:///x"])
    model = torch.nn.ParameterList([torch.randn(2) for _ in range(3000)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = Checkpointer(
        model=model, optimizer=optimizer, job="j", client=client.as_client(), slots=2
    )

    assert saver.stage(1)

    assert len(client.reservations) == 1
    assert len(client._slots) == 2


# torchdata calls what torch has deprecated.
@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")
def test_two_resumes_in_one_epoch_show_each_sample_once(store: str) -> None:
    def loader() -> StatefulDataLoader[int]:
        # Two workers, each of which has fetched ahead when it is killed.
        return StatefulDataLoader(
            list(range(24)),  # type: ignore[arg-type] # a list is a data set
            batch_size=3,
            shuffle=True,
            num_workers=2,
            generator=torch.Generator().manual_seed(1),
        )

    seen: list[int] = []
    for start, end in ((0, 3), (3, 5), (5, 8)):
        run, mine = Run(), loader()
        with run.saver(store=store, loader=mine) as saver:
            assert (saver.restore() or 0) == start
            batches = iter(mine)
            for step in range(start + 1, end + 1):
                seen += next(batches).tolist()
                run.train()
                if step == end:
                    assert saver.stage(step)
                    wait_committed(store, step)
        # Left to the garbage collector, each worker costs some other test 5 seconds.
        del batches
        mine._iterator = None
    assert sorted(seen) == list(range(24))
