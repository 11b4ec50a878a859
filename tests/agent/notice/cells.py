"""The table of source x fault: its columns, and the cells that tests elsewhere already fill.

`test_matrix.py` fills what is the same for every cloud; what is special to one source is tested
beside that source, and named here once more so that the table shows it. `conftest.py` draws it.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tests.matrix import Named, named

# In this order, as far as anything met them; others come behind.
COLUMNS = (
    *("301", "400", "401", "403", "404", "410", "429", "500", "503"),
    *("redirect", "raw-location", "html", "empty", "malformed", "garbage", "too-large"),
    *("truncated", "reset"),
    *("drip", "never", "slow", "refused", "absent", "unreadable", "wrong-hands"),
    *("no-etag", "etag-same", "no-flavor", "hang-503", "hang-never"),
    *("token-ttl-1s", "put-black-hole", ">5/s-429", "slow-first-call"),
    *("x60", "past", "+24h", "moving", "blank", "garbled", "unknown-word", "other-vm"),
    *("at-start", "cancel", "advice-then-real"),
)
CLOUDS = (
    *("gcp/preempted", "gcp/maintenance", "gcp/upcoming-maintenance", "gcp/stop"),
    *("aws/spot", "aws/rebalance", "aws/maintenance", "aws/asg"),
    "azure",
)
OTHERS = ("file", "exec", "http", "node", "shutdown", "calendar")
SOURCES = (*CLOUDS, *OTHERS)

_FAULT = "test_a_fault_is_unknown_and_says_what_it_is"
_HTTP = "test_a_fault_is_unknown_says_what_it_is_and_clears_no_notice"
_LIST = "test_a_refused_list_is_unknown_with_a_cure_and_clears_nothing"
_BODY = "test_a_body_that_is_no_list_is_unknown"

# Source: file: fault: test, with one of its ids where only that is meant.
ELSEWHERE: Mapping[str, Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "gcp/maintenance": {
            "test_gcp_keys.py": {
                "advice-then-real": "test_a_migration_that_becomes_an_end_is_the_same_event_and_surer",
            },
        },
        "gcp/upcoming-maintenance": {
            "test_gcp_keys.py": {
                "absent": "test_whatever_says_that_nothing_is_known_is_quiet",
            },
        },
        "aws/spot": {
            "aws/test_faults.py": {
                ">5/s-429": "test_too_many_questions_are_answered_429_and_the_notice_comes_through",
            },
            "aws/test_sources.py": {"advice-then-real": "test_advisory_and_then_the_real_one"},
        },
        "aws/rebalance": {
            "aws/test_sources.py": {"advice-then-real": "test_advisory_and_then_the_real_one"},
        },
        "azure": {
            "azure/test_faults.py": {
                ">5/s-429": "test_more_than_five_requests_a_second_are_unknown_and_heard_later",
            },
            "azure/test_source.py": {
                "slow-first-call": "test_the_slow_first_call_is_called_warming_up_and_then_heard",
                "advice-then-real": "test_advisory_then_real_are_two_notices",
            },
        },
        "file": {
            "user/test_file.py": {
                "absent": "test_no_file_is_quiet",
                "unreadable": "test_a_file_that_may_not_be_read_is_unknown",
                "empty": f"{_FAULT}[empty]",
                "truncated": f"{_FAULT}[torn]",
                "html": f"{_FAULT}[html]",
                "garbage": f"{_FAULT}[garbage]",
                "malformed": f"{_FAULT}[field]",
                "too-large": f"{_FAULT}[too-large]",
                # What would never have an end.
                "never": f"{_FAULT}[fifo]",
                "wrong-hands": f"{_FAULT}[world-writable]",
                "cancel": "test_a_notice_is_heard_and_taken_back_with_its_file",
            },
            "user/test_heard.py": {
                "past": "test_a_time_in_the_past_is_now_and_says_so",
                "moving": "test_a_file_that_stands_with_seconds_left_keeps_its_first_deadline",
            },
        },
        "exec": {
            "user/test_exec.py": {
                "absent": f"{_FAULT}[missing]",
                "unreadable": f"{_FAULT}[not executable]",
                "empty": f"{_FAULT}[silent]",
                "truncated": f"{_FAULT}[cut]",
                "malformed": f"{_FAULT}[text]",
                "too-large": f"{_FAULT}[too much]",
                "never": "test_a_program_that_takes_too_long_is_killed_with_all_that_it_started",
                "slow": "test_a_program_that_takes_too_long_is_killed_with_all_that_it_started",
                "wrong-hands": "test_what_anybody_may_change_is_not_run",
                "cancel": "test_a_notice_is_heard_and_cancelled",
            },
        },
        "http": {
            "user/test_http.py": {
                **{code: f"{_HTTP}[status={code}]" for code in ("401", "404", "500")},
                **{
                    name: f"{_HTTP}[{name}]"
                    for name in (
                        *(
                            "redirect",
                            "html",
                            "empty",
                            "malformed",
                            "garbage",
                            "too-large",
                        ),
                        *("truncated", "reset", "drip", "never"),
                    )
                },
                "slow": f"{_HTTP}[slow=10]",
                "absent": f"{_HTTP}[status=404]",
                "refused": "test_a_server_that_is_away_is_unknown",
                "cancel": "test_a_notice_is_heard_and_cancelled",
            },
        },
        "node": {
            "node/test_source.py": {
                **{
                    code: f"{_LIST}[{code}]"
                    for code in ("301", "400", "401", "403", "404", "410", "429", "500", "503")
                },
                "html": f"{_BODY}[html]",
                "empty": f"{_BODY}[empty]",
                "malformed": f"{_BODY}[array]",
                "garbage": f"{_BODY}[binary]",
                "truncated": f"{_BODY}[cut]",
                "never": "test_a_slow_server_is_unknown",
                "slow": "test_a_slow_server_is_unknown",
                "refused": "test_nobody_there_is_unknown",
                "absent": "test_a_node_that_is_not_there_is_unknown_and_clears_nothing",
                "unreadable": "test_missing_credentials_are_unknown_with_a_cure",
                "wrong-hands": "test_a_certificate_of_another_ca_is_unknown",
                "moving": "test_a_date_that_moves_later_never_lengthens_and_jitter_changes_nothing",
                "other-vm": "test_other_nodes_marks_are_not_ours",
                "at-start": "test_a_mark_that_is_there_at_the_start_is_told_first",
                "cancel": "test_a_mark_is_told_in_the_moment_it_is_set_and_cancelled_when_it_goes",
                "advice-then-real": (
                    "test_an_advice_that_becomes_real_keeps_its_id_and_is_never_cancelled_between"
                ),
            },
        },
        "shutdown": {
            "shutdown/test_logind.py": {
                "absent": "test_no_logind_is_unknown_with_a_cure",
                "refused": "test_no_bus_is_unknown_with_a_cure",
                "unreadable": "test_a_refused_lock_degrades_and_still_hears",
                "malformed": "test_a_signal_of_another_shape_is_no_notice",
                "garbage": "test_something_that_is_no_bus_is_unknown",
                "reset": "test_a_bus_that_restarts_is_unknown_and_then_heard_again",
                "at-start": "test_a_shutdown_already_under_way_is_told_at_the_start",
                "cancel": "test_a_shutdown_called_off_is_cancelled_once_and_locked_again",
            },
            "shutdown/test_sigterm.py": {
                "never": "test_a_bus_that_hangs_does_not_hold_the_answer",
                "slow": "test_a_bus_that_hangs_does_not_hold_the_answer",
            },
        },
        "calendar": {
            "test_calendar.py": {
                "malformed": "test_an_end_without_a_zone_is_refused",
                "past": "test_an_end_that_has_passed_before_the_daemon_began_is_a_mistake",
                "moving": "test_a_step_of_the_wall_clock_moves_nothing_however_long_it_lasts",
                "x60": "test_repeats_are_one_notice",
                "at-start": "test_the_end_is_planned_from_the_start_thirty_minutes_early",
            },
        },
    }
)


def filled() -> Iterator[Named]:
    """Every cell that is filled elsewhere."""
    for source, files in ELSEWHERE.items():
        for file, faults in files.items():
            for fault, test in faults.items():
                yield named((source, fault), file, test)


def column_of(name: str) -> str:
    """The column of a fault that was tried in several ways: ``blank`` of ``blank-reboot``."""
    before = name.rpartition("-")[0]
    return before if name not in COLUMNS and before in COLUMNS else name
