"""Public bug reports of other handlers, and the test that holds evac to the right behaviour.

A row's number is for good, and some are not in use. With a * it can be reproduced with a metadata
service or an API server of one's own, and has to name a test.

A. What the metadata protocols do to a handler

  1*   aws-node-termination-handler#229   401 for ever once the token expires
      notice/aws/test_token.py::test_after_a_401_the_token_is_replaced_and_the_key_asked_for_once_more
  2*   aws-node-termination-handler#668   repeated 401 ends in a panic
      notice/aws/test_token.py::test_401_for_ever_is_one_retry_each_time_and_never_an_end
  3*   aws-node-termination-handler#732   exits where there is no metadata service
      daemon/test_notice.py::test_a_daemon_that_has_heard_nothing_yet_is_not_ready_and_says_why
  4*   aws-node-termination-handler#916   503 at the start is a crash loop
      notice/aws/test_faults.py::test_a_service_that_is_late_is_heard
  5*   aws-node-termination-handler#21    a refused connection kills it
      notice/aws/test_token.py::test_a_refused_connection_is_a_value
      daemon/test_notice.py::test_a_metadata_service_that_dies_is_told_and_fires_nothing
  6*   aws-node-termination-handler#399   the PUT times out, and each poll waits for it
      notice/aws/test_token.py::test_the_hop_limit_is_found_out_once_and_believed_for_a_while
  7*   aws-node-termination-handler#406   the token has a retry policy of its own
      notice/aws/test_faults.py::test_nothing_ends_a_watch_and_the_notice_is_heard_when_it_is_over
      notice/test_polled.py::test_failures_back_off_to_five_seconds_and_no_further
  8    aws-node-termination-handler#74    the metadata service is closed to pods
      daemon/test_notice.py::test_a_daemon_that_has_heard_nothing_yet_is_not_ready_and_says_why
      notice/aws/test_faults.py::test_all_sources_at_once_say_the_hop_limit_after_one_put
  9*   aws-ebs-csi-driver#2966            a hop limit of 2 is not enough
      notice/aws/test_token.py::test_a_put_in_a_black_hole_with_get_alive_is_the_hop_limit
  10*  kube2iam#279, kiam#359             proxies add X-Forwarded-For, and the PUT is a 403
      notice/aws/test_token.py::test_403_says_that_imds_is_off_or_a_proxy_in_the_way
  11*  boto#1146                          the proxy host's metadata instead of one's own
      notice/test_metadata.py::test_the_proxy_environment_is_never_used
  12*  dd-agent#1594                      clobbers the user's no_proxy
      notice/test_bug_reports.py::test_listening_leaves_the_environment_as_it_was
  13*  aurproxy#32 and five more          the same proxy
      notice/aws/test_token.py::test_the_proxy_environment_is_never_used
      notice/azure/test_faults.py::test_the_proxy_environment_is_never_used
      notice/test_gcp.py::test_the_proxy_environment_is_never_used
  14*  google-auth-library-nodejs#1755    the token is never refreshed
      notice/aws/test_token.py::test_a_token_is_replaced_at_half_its_life
      notice/aws/test_token.py::test_with_a_life_of_one_second_no_question_goes_unanswered
  15*  AWS.jl#654                         a PUT that times out is taken for no metadata service
      notice/aws/test_token.py::test_a_service_that_says_nothing_at_all_is_not_the_hop_limit
  16*  amazon-ecs-agent#2199              stop and hibernate are missed
      notice/aws/test_sources.py::test_each_event_is_heard_by_its_own_source_with_its_window
      notice/aws/test_reading.py::test_a_hibernation_is_now_whatever_its_time
  17*  k8s-node-termination-handler#24    a key that is not defined is a crash
      notice/test_gcp.py::test_404_hints_at_gkes_metadata_server
  18*  taskcluster PR#6805                what is TRUE at the start is missed by a hanging GET
      notice/test_gcp.py::test_a_notice_that_stands_at_the_start_is_found_by_the_plain_read
  20*  taskcluster#6987                   a notice before the task starts is lost
      daemon/test_notice.py::test_a_notice_before_anybody_is_on_board_waits_for_them
  21*  scylla-cluster-tests#4373          a long poll that fails breaks the monitor
      notice/test_gcp.py::test_where_hanging_gets_keep_failing_plain_reads_hear_the_notice
  22*  taskcluster PR#7916                asks Azure every 15 s, and misses 30 s
      notice/test_bug_reports.py::test_a_cloud_that_is_polled_is_asked_every_second
  23*  cluster-api-provider-gcp#112       5 s are too slow for 30 s
      notice/test_gcp.py::test_a_notice_that_comes_is_told_by_the_hanging_get
  25*  aks-node-termination-handler PR#73 one second is too little for the enabling call
      notice/azure/test_source.py::test_the_slow_first_call_is_called_warming_up_and_then_heard
  26   resource-agents#1986               azure-events cannot ask, and nobody sees it
      notice/azure/test_faults.py::test_a_service_that_comes_up_late_is_heard
      listening/test_ears.py::test_status_shows_each_source_since_when_why_and_what_to_do
  27   azure-docs#56074, #68832, #55231   whose events they are, and how often to ask
      notice/azure/test_source.py::test_other_machines_events_are_quiet
      notice/test_bug_reports.py::test_a_cloud_that_is_polled_is_asked_every_second

B. What events mean

  29*  aws-node-termination-handler#250   one notice, 60 lines
      listening/test_ears.py::test_sixty_repeats_of_a_notice_are_one_line_and_one_count
      daemon/test_notice.py::test_a_notice_that_stands_for_many_polls_is_one_line_and_one_order
  30*  aws-node-termination-handler#1100  a state without a time is 151 events
      notice/aws/test_sources.py::test_one_state_is_one_event_for_as_long_as_it_lasts
  32*  aws-node-termination-handler#315   NotAfter is missing or empty
      notice/aws/test_maintenance.py::test_not_after_may_be_missing_or_anything
  33*  aws-node-termination-handler#361   the hardware fails now, the stop is in two weeks
      notice/aws/test_maintenance.py::test_early_starts_the_order_at_once_and_keeps_its_time_as_the_deadline
  36*  aws-node-termination-handler PR#61 a cancellation is not heard
      notice/aws/test_maintenance.py::test_what_is_over_is_cancelled_once_and_the_order_stands_down
      daemon/test_notice.py::test_an_azure_event_that_vanishes_stands_everybody_down
  37*  NVSentinel#1545                    what was cancelled stays marked for ever
      notice/azure/test_source.py::test_a_scheduled_event_that_vanishes_is_cancelled_once
  38*  aws-node-termination-handler#321   advice cordons the node, and nothing undoes it
      daemon/test_notice.py::test_advice_neither_orders_nor_cordons
      order/test_machine.py::test_advice_that_still_stands_is_told_again_after_its_time
  39*  aws-node-termination-handler#786   drains although that is switched off
      daemon/test_notice.py::test_what_is_switched_off_is_not_asked_at_a_sigterm
      listening/test_listener.py::test_advice_can_be_switched_off
  41   aws-node-termination-handler#1022  the event is late, the node gone
      test_metrics.py::test_how_long_before_their_time_notices_are_seen_is_measured_and_late_ones_are_counted
  42*  aws-node-termination-handler#104   the record lacks its id
      notice/test_bug_reports.py::test_every_notice_says_what_it_is
  43*  aks-node-termination-handler#43    a freeze drains, and then nobody watches
      notice/azure/test_source.py::test_a_freeze_is_told_and_watching_goes_on
  44*  aks-node-termination-handler#28    NoExecute kills all pods before the drain
      cordon/kubernetes/test_cordon.py::test_nothing_is_ever_tainted_no_execute
      ../container/test_rights.py::test_it_evicts_nobody_by_a_taint
  45*  karpenter-provider-azure#1829      the deadline is read and then dropped
      daemon/test_notice.py::test_each_cloud_s_notice_saves_what_is_staged
      notice/azure/test_meaning.py::test_a_date_that_cannot_be_read_gives_the_shortest_notice_of_its_kind
  47   AKS#3528, #3463                    evicted without the platform's drain
      daemon/test_notice.py::test_a_preemption_notice_saves_what_is_staged
  48*  runs-on#277                        ends itself 95 s early
      order/test_laws.py::test_a_planned_order_starts_at_deadline_minus_need_and_not_before
  49*  aws-node-termination-handler#858   evicts at once in place of using the window
      daemon/test_notice.py::test_a_preemption_notice_saves_what_is_staged

C. Cordon and drain

  51*  aws-node-termination-handler#542   after a 409 the taint is left out
      cordon/kubernetes/test_cordon.py::test_after_conflicts_the_taint_is_there_and_nobody_s_is_lost
  52*  aws-node-termination-handler#1277  the taint is lost, its error swallowed
      cordon/kubernetes/test_cordon.py::test_a_taint_that_somebody_loses_is_put_back
      cordon/kubernetes/test_cordon.py::test_a_taint_that_does_not_stay_is_told
      cordon/kubernetes/test_cordon.py::test_whoever_looks_at_the_node_sees_that_it_could_not_be_closed
      cordon/test_gate.py::test_a_reopen_that_failed_stays_noted_as_closed
  54*  aws-node-termination-handler#127   without tolerations it is not on a tainted node
      ../container/test_chart.py::test_it_comes_to_every_node_of_its_pools_whatever_taints_that_has
  55*  aws-node-termination-handler#476   new work still lands on the dying node
      daemon/test_cordon_in_time.py::test_a_certain_notice_closes_the_cordon_while_the_flush_still_runs
      ../container/test_node_leaves.py::test_a_preempted_node_is_closed_before_its_flush_is_over
      cordon/kubernetes/test_cordon.py::test_threads_that_are_all_busy_keep_the_node_open_for_nobody
      cordon/test_following.py::test_a_disk_that_takes_for_ever_does_not_keep_the_node_open
  56   k8s-node-termination-handler#38    one after another: 6 of 40 pods in 30 s
      plan/test_plan.py::test_lanes_run_beside_each_other
      cordon/kubernetes/test_eviction.py::test_pods_are_asked_for_beside_each_other
  58*  kured#955, #63                     not opened again after the reboot
      daemon/test_leaving.py::test_after_a_reboot_the_node_is_opened_and_no_drain_stands
      ../container/test_node_leaves.py::test_after_a_reboot_the_node_says_itself_that_it_was_ours
      ../container/test_node_leaves.py::test_a_cancel_that_no_server_answers_opens_it_once_one_does
  60   NVSentinel#754                     two handlers fight over one node
      cordon/kubernetes/test_cordon.py::test_report_only_tells_and_touches_nothing
      cordon/kubernetes/test_cordon.py::test_another_handler_s_marks_are_named
  61*  karpenter-provider-aws#4028        the drain takes longer than there is
      plan/test_plan.py::test_no_step_in_time_ends_after_the_deadline_less_the_reserve
      cordon/kubernetes/test_eviction.py::test_a_budget_is_obeyed_and_told_within_the_time
      ../container/test_node_leaves.py::test_pods_go_last_as_their_budget_allows_and_a_shorter_deadline_waits_for_none

D. Shutdown

  63   systemd#6437, #3912, #20899        at a shutdown it is not stopped, or in the wrong order
      install/test_pages.py::test_systemd_has_no_complaint_about_the_unit
      notice/test_bug_reports.py::test_a_shutdown_stops_the_unit_before_what_it_needs
"""

import ast
import os
import re
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from evacd.clock import SystemClock
from evacd.config import NoticeConfig
from evacd.facts import Noticed, Quiet
from evacd.notice.metadata import open_session
from tests.agent.listening.scene import ALONE, listening
from tests.agent.notice.hearing import watching
from tests.agent.notice.test_matrix import OPEN, PATIENT, ROWS, Row, simulated

HERE = Path(__file__).parents[1]
ROOT = HERE.parents[1]
NAMED = re.findall(r"^ {6}(\S+\.py)::(\w+)$", __doc__ or "", re.MULTILINE)
# Each row: its number, whether it is starred, and what is below it.
ROW = re.compile(r"^ {2}(\d+)(\*?) +\S.*\n((?: {6}.*\n)*)", re.MULTILINE)
REPORTS = {int(number): (bool(star), below) for number, star, below in ROW.findall(__doc__ or "")}
# All rows there are, so that none gets lost.
NUMBERS = [*range(1, 19), *range(20, 24), *range(25, 28), 29, 30, 32, 33, *range(36, 40)]
NUMBERS += [41, 42, 43, 44, 45, 47, 48, 49, 51, 52, 54, 55, 56, 58, 60, 61, 63]
NOT_STARRED = {8, 26, 27, 41, 47, 56, 60, 63}


def functions_of(text: str) -> set[str]:
    """The names of all functions in a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[f"{f}::{n}" for f, n in NAMED])
def test_the_named_test_exists(file: str, name: str) -> None:
    assert name in functions_of((HERE / file).read_text())


def test_every_row_is_here_once_and_names_a_test_or_says_why_not() -> None:
    written = [int(number) for number, _, _ in ROW.findall(__doc__ or "")]

    assert sorted(written) == sorted(NUMBERS)
    assert {number for number, (star, _) in REPORTS.items() if not star} == NOT_STARRED
    for number, (_, below) in REPORTS.items():
        assert re.search(r"::test_\w+|\(no test: \w", below), number


def test_what_can_be_reproduced_has_a_test() -> None:
    assert not {n for n, (star, below) in REPORTS.items() if star and "(no test: " in below}


def test_a_shutdown_stops_the_unit_before_what_it_needs() -> None:
    lines = (ROOT / "agent/evacd/install/files/evacd.service").read_text().splitlines()
    after = {each for line in lines if line.startswith("After=") for each in line[6:].split()}

    # Without its default dependencies a unit is not stopped at all (systemd#6437).
    assert not [line for line in lines if line.startswith("DefaultDependencies")]
    # What starts after another is stopped before it; without an order they stop together.
    assert {"network-online.target", "local-fs.target", "remote-fs.target"} <= after
    assert {"dbus.service", "systemd-logind.service", "nvidia-persistenced.service"} <= after
    assert {"containerd.service", "docker.service"} <= after
    # What stops it is a signal to it: ExecStop= would be another process, and race with it.
    assert not [line for line in lines if line.startswith("ExecStop")]


def test_a_cloud_that_is_polled_is_asked_every_second() -> None:
    assert NoticeConfig().poll_seconds == 1.0


async def test_listening_leaves_the_environment_as_it_was() -> None:
    before = dict(os.environ)
    cloud, _ = simulated("aws", SystemClock())
    async with TestServer(cloud.app) as server:
        url = str(server.make_url("")).rstrip("/")
        given = {**ALONE, "notice.cloud": "auto", "notice.metadata_url": url}
        async with listening(given=given) as scene:
            await scene.node.until_heard("aws/spot", Quiet)

    assert dict(os.environ) == before


@pytest.mark.parametrize("row", ROWS, ids=[row.source for row in ROWS])
async def test_every_notice_says_what_it_is(row: Row) -> None:
    cloud, _ = simulated(row.cloud, SystemClock())
    async with TestServer(cloud.app) as server, open_session(connections=8) as session:
        url = str(server.make_url("")).rstrip("/")
        sources = OPEN[row.cloud](session, url, SystemClock(), PATIENT)
        source = next(each for each in sources if each.name == row.source)
        async with watching(source) as hearing:
            await hearing.until(Quiet)
            cloud.actions[row.action]()
            told = hearing.told[await hearing.until(Noticed)]

    assert isinstance(told, Noticed)
    notice = told.notice
    assert notice.source == row.source
    assert all((notice.kind, notice.id, notice.detail))
    assert notice.seen > 0
