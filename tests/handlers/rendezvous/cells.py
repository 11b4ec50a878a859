"""The table of how nodes leave: its rows, its columns, and which test fills which cell.

A column in brackets is the handler alone, as torchrun's agent calls it, in threads and without
workers; the others are torchrun's agents with gloo workers.
"""

from collections.abc import Iterator
from types import MappingProxyType

from tests.matrix import Named, named

# Where the job's nodes meet: `evac store`, in the agent of the first node, or in etcd.
TCPSTORE, HOSTED, ETCD = "TCPStore", "in a node", "etcd"
KINDS = (TCPSTORE, HOSTED, ETCD)
COLUMNS = (*KINDS, "(TCPStore)", "(in a node)", "(etcd)")

AGAIN = "3 -> 2 -> 3, and to the end"
FIRST, SECOND, THIRD = "rank 0 leaves", "rank 1 leaves", "rank 2 leaves"
HOST, HOST_KILLED = "the store's host leaves", "... and is killed as it does"
TWO = "two leave at once"
KILLED = MappingProxyType(
    {0.0: "SIGKILL with the notice", 0.2: "SIGKILL 0.2 s after", 1.0: "SIGKILL 1 s after"}
    | {5.0: "SIGKILL 5 s after"}
)
FORMING = "notice as a rendezvous forms"
TWICE, CANCEL = "notice twice", "notice, and cancelled"
OTHER_JOB, OTHER_BOOT = "a node of another job", "a node of an earlier boot"
SHORT = "too few are left"
TOLD = "its agent is told to end"
DEAD = "the store's process dies"
SILENT = "the store's process hangs"
CUT, CUT_NOTICE = "its network is cut", "its notice is cut off"
CUT_HOST = "the store's network is cut"
TEN, FIFTY = "ten times 3 -> 2 -> 3", "50 departures at random"
SLOTS = "ten times, evacd and its slots"
ROWS = (
    AGAIN, FIRST, SECOND, THIRD, HOST, HOST_KILLED, TWO, *KILLED.values(), FORMING, TWICE, CANCEL, OTHER_JOB,
    OTHER_BOOT, SHORT, TOLD, DEAD, SILENT, CUT, CUT_NOTICE, CUT_HOST, TEN, FIFTY,
    SLOTS,
)  # fmt: skip

AGENTS = "test_agents.py"
# Over each kind.
_AGENTS = MappingProxyType(
    {
        "test_three_become_two_and_three_again_and_finish": AGAIN,
        "test_two_at_once": TWO,
        "test_a_notice_while_a_rendezvous_is_under_way": FORMING,
        "test_the_same_notice_twice_is_one": TWICE,
        "test_a_notice_that_is_taken_back": CANCEL,
        "test_of_two_jobs_on_a_node_each_hears_its_own": OTHER_JOB,
        "test_an_earlier_boot_is_another_node": OTHER_BOOT,
        "test_too_few_survivors_wait_until_one_comes": SHORT,
        "test_an_agent_is_told_to_end_without_any_notice": TOLD,
        "test_the_store_dies": DEAD,
        "test_a_departure_that_reaches_nobody_harms_nobody": SILENT,
        "test_three_two_three_ten_times": TEN,
        "test_fifty_departures_at_random": FIFTY,
    }
)
_THREADS = MappingProxyType(
    {
        "test_a_replacement_joins_in_the_next_round": AGAIN,
        "test_the_first_rank_departs": FIRST,
        "test_two_depart_at_once": TWO,
        "test_a_notice_while_a_rendezvous_is_under_way": FORMING,
        "test_the_same_notice_twice_is_one": TWICE,
        "test_a_notice_that_is_taken_back_costs_a_round_at_most": CANCEL,
        "test_nodes_of_other_jobs_and_earlier_boots_are_none_of_ours": OTHER_JOB,
        "test_the_same_name_after_a_reboot_is_another_node": OTHER_BOOT,
        "test_too_few_survivors_wait_until_one_comes": SHORT,
        "test_departures_at_random_leak_nothing": FIFTY,
    }
)
_HOSTED = MappingProxyType(
    {
        "test_the_host_of_the_store_departs_and_the_store_moves": HOST,
        "test_the_host_and_another_depart_at_once": TWO,
        "test_the_host_dies_without_a_word": KILLED[0.0],
        "test_a_store_that_dies_stops_nobody_who_works": DEAD,
    }
)
_CUT = MappingProxyType(
    {
        "test_who_is_cut_off_holds_nobody_up_and_comes_back": CUT,
        "test_a_departure_that_was_cut_off_is_heard_once_the_network_is_back": CUT_NOTICE,
        "test_without_the_store_s_machine_nobody_waits_for_ever": CUT_HOST,
    }
)


def filled() -> Iterator[Named]:
    """Every cell, by each test that fills it."""
    for test, row in _AGENTS.items():
        for kind in KINDS:
            yield named((row, kind), AGENTS, f"{test}[{kind}]")
    for kind in KINDS:
        for rank, row in enumerate((FIRST, SECOND, THIRD)):
            yield named((row, kind), AGENTS, f"test_any_rank[{rank}-{kind}]")
        for seconds, row in KILLED.items():
            for rank in range(3):
                test = f"test_a_kill_after_the_notice[{seconds}-{rank}-{kind}]"
                yield named((row, kind), AGENTS, test)
    yield named((HOST, HOSTED), AGENTS, "test_the_host_of_the_store_leaves")
    yield named((HOST_KILLED, HOSTED), AGENTS, "test_the_host_gets_a_notice_and_is_killed_at_once")
    for test, row in _THREADS.items():
        yield named((row, "(TCPStore)"), "test_nodes.py", f"{test}[tcpstore]")
        yield named((row, "(etcd)"), "test_nodes.py", f"{test}[in_etcd]")
    for test, row in _HOSTED.items():
        yield named((row, "(in a node)"), "test_nodes.py", test)
    for kind in KINDS:
        test = f"test_ten_times_leave_no_slot_no_file_no_thread_and_no_key[{kind}]"
        yield named((SLOTS, kind), "test_slots.py", test)
    for test, row in _CUT.items():
        for kind in KINDS:
            yield named((row, kind), "test_partition.py", f"{test}[{kind}]")
