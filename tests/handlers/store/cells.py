"""The table of fault x store: its rows, and the cells that tests elsewhere already fill.

`test_faults.py` strikes each call of a flush; what only one store can suffer is tested beside
that store, and named here once more so that the table shows it. `conftest.py` has it drawn.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.matrix import Named, named

TESTS = Path(__file__).parents[2]
ROWS = (
    *("disk full", "EIO", "read-only", "403", "404", "429", "500", "503", "slow", "reset"),
    *(
        "half a body",
        "half an answer",
        "answer lost",
        "keys expire",
        "no name",
        "name gone",
        "nobody there",
    ),
    *(
        "wall clock wrong",
        "clock steps",
        "deadline now 0",
        "cancelled",
        "killed",
        "left behind",
        "zombie",
    ),
    *(
        "stale ack",
        "bit flip on its way",
        "bit flip in store",
        "bit flip in memory",
        "fds and threads",
    ),
)
COLUMNS = ("file", "s3", "gs", "az", "evac")

_CANCEL = "test_a_cancelled_put_leaves_nothing_and_frees_the_memory"
_TOLD = "test_a_host_without_a_name_or_an_answer_is_told_apart"
_BUCKET = "handlers/store/test_commit_in_bucket.py"
_FENCED = "test_a_zombie_cannot_replace_what_counts"
_CHUNK = "test_a_generation_of_large_bodies_is_verified_chunk_by_chunk"
_KILLED = "test_a_put_that_the_interpreters_end_overtakes_is_still_whole"

# Store: file: fault: tests, with one of their ids where only that is meant.
ELSEWHERE: Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]] = MappingProxyType(
    {
        "file": {
            "handlers/store/test_local.py": {
                "disk full": ("test_a_full_disk_is_said_with_numbers_and_leaves_no_file",),
                "read-only": ("test_a_read_only_store_is_rejected_and_still_readable",),
                "cancelled": (_CANCEL,),
                "killed": (
                    "test_a_killed_writer_leaves_no_key_and_what_it_left_is_cleaned",
                    _KILLED,
                ),
                "left behind": (
                    "test_a_killed_writer_leaves_no_key_and_what_it_left_is_cleaned",
                    "test_cleaning_takes_nothing_but_our_temporary_files",
                ),
            },
            "handlers/store/test_local_owners.py": {
                "403": ("test_a_place_that_is_anothers_is_left_to_them_and_told",),
            },
            "handlers/commit/test_committing.py": {
                "zombie": (
                    "test_the_same_manifest_twice_is_fine_and_another_is_fenced",
                    "test_other_bytes_for_a_committed_generation_leave_it_as_it_is",
                    "test_a_zombies_late_step_does_not_beat_a_newer_incarnation",
                ),
                "killed": ("test_a_commit_cut_off_anywhere_never_looks_whole_unless_it_is",),
                "bit flip in store": ("test_verify_finds_a_flipped_bit_wherever_it_is",),
            },
            "handlers/torch/test_reader.py": {
                "bit flip in store": ("test_one_wrong_bit_anywhere_and_no_tensor_is_touched",),
            },
            "agent/daemon/test_clock_steps.py": {
                "clock steps": (
                    "test_a_step_of_the_wall_clock_in_mid_order_moves_nothing_nor_one_over_a_restart",
                    "test_clocks_that_a_suspended_machine_left_apart_are_nobodys_deadline",
                ),
            },
            "agent/report/test_journal_clock.py": {
                "clock steps": (
                    "test_an_incident_that_goes_on_after_a_boot_stays_in_order_whatever_the_wall_clock_says",
                ),
            },
            "agent/daemon/test_nothing_lost.py": {
                "bit flip in memory": (
                    "test_what_a_workload_corrupts_after_staging_is_not_taken_as_whole",
                ),
            },
        },
        "s3": {
            "handlers/store/test_s3.py": {
                "no name": (_TOLD,),
                "nobody there": (_TOLD,),
                "cancelled": (_CANCEL,),
            },
            "handlers/store/test_s3_keys.py": {
                "keys expire": (
                    "test_keys_are_renewed_before_they_expire",
                    "test_keys_that_the_store_calls_expired_are_replaced_for_the_next_try",
                ),
            },
            "handlers/store/test_s3_uploads.py": {
                "cancelled": ("test_a_cancelled_put_aborts_its_upload",),
                "left behind": ("test_cleaning_aborts_our_dead_uploads_and_nobody_elses",),
                "wall clock wrong": ("test_dead_is_what_is_dead_by_the_stores_clock",),
            },
            _BUCKET: {
                "zombie": (f"{_FENCED}[s3]",),
                "killed": (f"{_KILLED}[s3]",),
                "bit flip in store": (f"{_CHUNK}[s3]",),
            },
        },
        "gs": {
            "handlers/store/test_gcs.py": {
                "no name": (_TOLD,),
                "nobody there": (_TOLD,),
                "cancelled": (_CANCEL,),
                "left behind": ("test_parts_are_no_objects_and_only_dead_ones_are_cleaned",),
                "bit flip on its way": (
                    "test_a_body_that_always_arrives_damaged_never_gets_its_name",
                ),
            },
            _BUCKET: {
                "zombie": (f"{_FENCED}[gs]",),
                "killed": (f"{_KILLED}[gs]",),
                "bit flip in store": (f"{_CHUNK}[gs]",),
            },
        },
        "az": {
            "handlers/store/test_azure.py": {
                "no name": ("test_a_host_without_a_name_is_told_apart",),
                "cancelled": (_CANCEL,),
            },
            _BUCKET: {
                "zombie": (f"{_FENCED}[az]",),
                "killed": (f"{_KILLED}[az]",),
                "bit flip in store": (f"{_CHUNK}[az]",),
            },
        },
        "evac": {
            "handlers/store/test_peer.py": {
                "disk full": ("test_a_full_peer_says_so_with_numbers_and_keeps_what_it_has",),
                "403": ("test_another_token_or_none_opens_nothing",),
                "reset": ("test_what_loses_its_connection_is_forgotten_and_may_be_tried_again",),
                "nobody there": ("test_nobody_listens_there_says_every_call",),
                "killed": ("test_a_peer_that_was_restarted_is_found_again",),
                "cancelled": (_CANCEL,),
                "bit flip on its way": (
                    "test_a_chunk_that_arrives_damaged_is_refused_by_its_number",
                    "test_a_chunk_that_comes_back_damaged_is_no_answer",
                ),
            },
        },
    }
)  # fmt: skip


def filled() -> Iterator[Named]:
    """Every cell that is filled elsewhere."""
    for store, files in ELSEWHERE.items():
        for file, faults in files.items():
            for fault, tests in faults.items():
                for test in tests:
                    yield named((fault, store), file, test)
