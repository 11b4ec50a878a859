"""How a node leaves and stays, with the daemon, a cordon's programs and a receiver as processes."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evac import incident
from evac.wire import Accepted, Refuse
from tests.agent.daemon.nodes import Node, until
from tests.agent.daemon.test_notice import Cloud

# Writes what it is asked to do, when it begins and when it has done it.
CORDON = """
import json, sys, time
log, seconds = sys.argv[1], float(sys.argv[2])
action = json.load(sys.stdin)["action"]
def say(what):
    with open(log, "a") as file:
        file.write(f"{action} {what}\\n")
say("began")
time.sleep(seconds)
say("ended")
"""


class Scheduler:
    """What the cordon's programs talk to."""

    def __init__(self, home: Path) -> None:
        self._log = home / "scheduler.log"
        self._program = home / "cordon.py"
        self._program.write_text(CORDON)

    def flags(self, *, close: float = 0.0, reopen: float = 0.0) -> list[str]:
        """For the daemon; each takes that many seconds."""
        program = f"{sys.executable} {self._program} {self._log}"
        return [
            "--cordon-command", f"{program} {close}",
            "--cordon-undo-command", f"{program} {reopen}",
            "--cordon-timeout-seconds", "25",
        ]  # fmt: skip

    @property
    def said(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def says(self, what: str, times: int = 1) -> None:
        """Wait for it."""
        until(f"the scheduler hears: {what}", lambda: self.said.count(what) >= times)


class Receiver:
    """The webhook's far end: keeps what it takes, and what it was asked to take."""

    def __init__(self) -> None:
        self.status: Callable[[dict[str, Any]], int] = lambda _document: 200
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.taken: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                document = json.loads(body)
                receiver.asked.append(document)
                status = receiver.status(document)
                if status < 300:
                    receiver.keys.append(self.headers["Idempotency-Key"])
                    receiver.taken.append(document)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def flags(self) -> list[str]:
        port = self._server.server_address[1]
        return [
            "--departure-webhook-url", f"http://127.0.0.1:{port}/departures",
            "--departure-timeout-seconds", "20",
        ]  # fmt: skip

    def words(self, job: str) -> list[str]:
        """What it has taken about a job."""
        return [each["word"] for each in self.taken if each["job"].endswith(job)]

    def takes(self, word: str, job: str = "") -> dict[str, Any]:
        """Wait until it has taken it; the last."""
        found = until(
            f"{word} {job} arrives",
            lambda: [
                each for each in self.taken if each["word"] == word and each["job"].endswith(job)
            ],
        )
        return found[-1]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def scheduler(tmp_path: Path) -> Scheduler:
    return Scheduler(tmp_path)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    cloud = Cloud()
    yield cloud
    cloud.close()


def standing(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((node.home / "state" / "standing.json").read_text())
    return found


class TestCordon:
    def test_a_cancel_while_the_close_runs_leaves_the_node_open(
        self, node: Node, scheduler: Scheduler
    ) -> None:
        node.start(*scheduler.flags(close=2.0))
        node.drain()
        scheduler.says("close began")

        assert node.cancel() == Accepted()

        scheduler.says("reopen ended")
        assert scheduler.said == ["close began", "close ended", "reopen began", "reopen ended"]
        node.event("cordon.closed")
        node.event("cordon.reopened")

    def test_a_new_order_while_the_reopen_runs_leaves_the_node_closed(
        self, node: Node, scheduler: Scheduler
    ) -> None:
        node.start(*scheduler.flags(reopen=2.0))
        node.drain()
        scheduler.says("close ended")
        node.cancel()
        scheduler.says("reopen began")

        node.drain()

        scheduler.says("close ended", times=2)
        assert scheduler.said[2:] == ["reopen began", "reopen ended", "close began", "close ended"]
        node.event("cordon.closed")

    def test_what_was_not_closed_is_not_reopened(self, node: Node, scheduler: Scheduler) -> None:
        node.start(*scheduler.flags())

        assert node.terminate() == 0
        node.start(*scheduler.flags())
        assert node.terminate() == 0

        assert scheduler.said == []

    def test_a_second_request_to_stop_ends_a_cordon_that_hangs(
        self, node: Node, scheduler: Scheduler
    ) -> None:
        node.start(*scheduler.flags(close=3600.0), "--cordon-timeout-seconds", "3600")
        node.drain()
        scheduler.says("close began")
        process = node.process
        assert process

        def asked_twice() -> bool:
            # Signals that come close together are one.
            process.terminate()
            return b"daemon.killed" in node.log.read_bytes()

        until("it is asked a second time", asked_twice)
        process.wait(30)

        assert scheduler.said == ["close began"]
        assert standing(node)["closed"] == ["command"]
        assert b"ResourceWarning" not in node.log.read_bytes()


class TestDeparture:
    def test_no_leaving_arrives_after_staying(self, node: Node, receiver: Receiver) -> None:
        receiver.status = lambda each: 503 if each["word"] == "leaving" else 200
        node.start(*receiver.flags)
        node.staged(5)
        node.drain()
        until("leaving is being retried", lambda: len(receiver.asked) >= 2)

        node.cancel()
        receiver.takes("staying", "job")
        receiver.status = lambda _: 200
        node.event("departure.announced", word="staying")
        # It ends only when nothing is being announced any more.
        assert node.terminate() == 0

        assert receiver.words("job")[-1] == "staying"
        assert "leaving" not in receiver.words("job")
        failed = node.event("departure.failed", word="leaving")
        assert "staying" in failed.data["reason"]

    def test_an_amended_leaving_replaces_an_undelivered_one(
        self, node: Node, receiver: Receiver
    ) -> None:
        receiver.status = lambda each: (
            503 if each["word"] == "leaving" and each["seconds_left"] > 50 else 200
        )
        node.start(*receiver.flags)
        node.workload().ready()
        node.drain(100.0)
        until("leaving is being retried", lambda: len(receiver.asked) >= 2)

        node.drain(40.0)

        assert receiver.takes("leaving", "job")["seconds_left"] <= 40
        assert node.terminate() == 0
        assert receiver.words("job").count("leaving") == 1

    def test_sequences_rise_and_keys_differ_over_a_restart_too(
        self, node: Node, receiver: Receiver
    ) -> None:
        node.start(*receiver.flags)
        node.staged(5)
        node.drain()
        receiver.takes("durable", "job")
        node.kill()
        node.start(*receiver.flags)
        node.cancel()
        receiver.takes("staying", "job")

        sequences = [each["sequence"] for each in receiver.taken if each["job"]]
        assert sequences == sorted(set(sequences))
        assert len(set(receiver.keys)) == len(receiver.keys)

    def test_a_jobs_slow_receiver_delays_no_other_job(self, node: Node, receiver: Receiver) -> None:
        receiver.status = lambda each: 503 if each["job"].endswith("slow") else 200
        node.start(*receiver.flags)
        node.staged(5, job="slow")
        node.staged(5, job="quick")

        node.drain()

        receiver.takes("durable", "quick")
        assert receiver.words("quick") == ["leaving", "durable"]
        assert receiver.words("slow") == []

    def test_a_share_of_a_generation_is_written_and_a_whole_one_durable(
        self, node: Node, receiver: Receiver
    ) -> None:
        node.start(*receiver.flags)
        node.staged(5, job="half", rank=0, world=2)
        node.staged(6, job="whole")

        node.drain()

        written = receiver.takes("written", "half")
        durable = receiver.takes("durable", "whole")
        for document, step in ((written, 5), (durable, 6)):
            assert document["store"] == f"file://{node.store}"
            assert document["generation"] == {"incarnation": 1, "step": step}
        assert receiver.words("half") == ["leaving", "written"]


class TestRestart:
    def test_a_drain_stands_again_and_can_be_cancelled(
        self, node: Node, scheduler: Scheduler
    ) -> None:
        node.start(*scheduler.flags())
        node.drain(600.0)
        node.event("cordon.closed")
        node.kill()

        node.start(*scheduler.flags())
        order = until("the drain stands again", lambda: node.status()["order"])
        assert order["source"] == "operator"
        assert 0 < order["seconds_left"] < 600
        assert node.cancel() == Accepted()

        node.event("cordon.reopened")
        assert scheduler.said[-1] == "reopen ended"
        assert node.status()["order"] is None
        assert isinstance(node.cancel(), Refuse)

    def test_a_drain_whose_close_was_under_way_is_undone_too(
        self, node: Node, scheduler: Scheduler
    ) -> None:
        node.start(*scheduler.flags(close=2.0))
        node.drain(600.0)
        scheduler.says("close began")
        node.kill()

        assert standing(node)["closed"] == ["command"]
        scheduler.says("close ended")
        node.start(*scheduler.flags())
        node.cancel()

        scheduler.says("reopen ended")

    def test_a_drain_that_is_past_stands_again_in_overtime(
        self, node: Node, scheduler: Scheduler
    ) -> None:
        node.start(*scheduler.flags())
        node.drain(0.1)
        node.event("cordon.closed")
        until("it is past", lambda: node.status()["order"]["seconds_left"] < 0)
        node.kill()

        node.start(*scheduler.flags())
        order = until("the drain stands again", lambda: node.status()["order"])
        assert order["seconds_left"] < 0
        # What comes now is saved in overtime.
        node.staged(5)
        until("it is saved", lambda: node.status()["outcomes"])
        assert node.cancel() == Accepted()

    def test_a_drain_that_was_cancelled_stays_so(self, node: Node, scheduler: Scheduler) -> None:
        node.start(*scheduler.flags())
        node.drain(600.0)
        node.event("cordon.closed")
        node.cancel()
        node.event("cordon.reopened")
        until("that is on the disk", lambda: not standing(node)["closed"])
        node.kill()

        node.start(*scheduler.flags())

        assert isinstance(node.cancel(), Refuse)
        assert node.terminate() == 0
        assert scheduler.said.count("reopen began") == 1

    def test_after_a_reboot_the_node_is_opened_and_no_drain_stands(
        self, node: Node, scheduler: Scheduler
    ) -> None:
        node.start(*scheduler.flags())
        node.drain(600.0)
        node.event("cordon.closed")
        node.kill()
        # The kernel gives each boot another id; this one was given before the reboot.
        path = node.home / "state" / "standing.json"
        path.write_text(json.dumps(standing(node) | {"boot": "the boot before"}))

        node.start(*scheduler.flags())

        scheduler.says("reopen ended")
        assert isinstance(node.cancel(), Refuse)
        assert node.status()["order"] is None
        node.event("cordon.reopened")
        until("that is on the disk", lambda: not standing(node)["closed"])

    def test_a_clouds_order_that_is_gone_is_undone_once_the_cloud_says_so(
        self, node: Node, scheduler: Scheduler, cloud: Cloud, receiver: Receiver
    ) -> None:
        def start() -> Node:
            flags = ("--cloud", "gcp", "--metadata-url", cloud.url)
            return node.start(*flags, *scheduler.flags(), *receiver.flags)

        start().staged(5)
        cloud.do("preempt")
        node.event("cordon.closed")
        receiver.takes("leaving", "job")
        node.kill()
        cloud.do("clear")

        start()

        scheduler.says("reopen ended")
        receiver.takes("staying", "job")
        node.event("cordon.reopened")
        node.event("departure.announced", word="staying")

    def test_while_the_cloud_is_silent_the_node_stays_closed(
        self, node: Node, scheduler: Scheduler, cloud: Cloud
    ) -> None:
        flags = ("--cloud", "gcp", "--metadata-url", cloud.url, *scheduler.flags())
        node.start(*flags)
        cloud.do("preempt")
        node.event("cordon.closed")
        node.kill()
        cloud.close()

        node.start(*flags)
        until(
            "the cloud was asked twice",
            lambda: any(each["unknowns"] >= 2 for each in node.status()["sources"]),
        )
        node.kill()

        assert "reopen began" not in scheduler.said
        assert standing(node)["closed"] == ["command"]

    def test_a_clouds_order_that_still_stands_keeps_the_node_closed(
        self, node: Node, scheduler: Scheduler, cloud: Cloud
    ) -> None:
        flags = ("--cloud", "gcp", "--metadata-url", cloud.url, *scheduler.flags())
        node.start(*flags)
        cloud.do("preempt")
        node.event("cordon.closed")
        node.kill()

        node.start(*flags)
        until("the order is given again", lambda: node.status()["order"])
        scheduler.says("close ended", times=2)
        assert "reopen began" not in scheduler.said

        cloud.do("clear")
        scheduler.says("reopen ended")

    def test_a_corrupt_record_is_moved_aside_and_nothing_is_reopened(
        self, node: Node, scheduler: Scheduler
    ) -> None:
        state = node.home / "state"
        state.mkdir()
        (state / "standing.json").write_text('{"schema": 1, "closed": ["command"')

        node.start(*scheduler.flags())
        assert node.terminate() == 0

        assert scheduler.said == []
        assert list(state.glob("standing.json.aside-*"))
        lines = node.log.read_text().splitlines()
        assert sum('"standing.unreadable"' in line for line in lines) == 1

    def test_a_stop_in_order_leaves_the_drain_standing_too(
        self, node: Node, scheduler: Scheduler
    ) -> None:
        node.start(*scheduler.flags())
        node.drain(600.0)
        node.event("cordon.closed")
        assert node.terminate() == 0

        node.start(*scheduler.flags())

        assert node.cancel() == Accepted()
        scheduler.says("reopen ended")

    def test_the_reopening_is_in_the_incident_that_closed(
        self, node: Node, scheduler: Scheduler, cloud: Cloud
    ) -> None:
        flags = ("--cloud", "gcp", "--metadata-url", cloud.url, *scheduler.flags())
        node.start(*flags)
        cloud.do("preempt")
        node.event("cordon.closed")
        node.kill()
        cloud.do("clear")

        node.start(*flags)

        node.event("cordon.reopened")
        (only,) = incident.load(node.journal)
        names = [event.name for event in only.events]
        assert names.index("cordon.closed") < names.index("cordon.reopened")
