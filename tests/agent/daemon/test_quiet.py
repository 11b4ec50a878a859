"""Quiet time of a real node: what was staged is safe before there is any notice."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import Node, node_at, out_of_reach, until

MEBI = 1 << 20


def durable(node: Node, step: int) -> bool:
    return any(unit["durable_step"] == step for unit in node.status()["risk"]["units"])


def test_what_is_staged_becomes_durable_without_a_notice(node: Node) -> None:
    node.start("--quiet")
    node.staged(5)

    until("step 5 is durable", lambda: durable(node, 5))

    assert any(name.endswith("step-5.1/part0.bin") for name in node.files())
    assert node.events() == []
    risk = node.status()["risk"]
    assert (risk["at_risk_bytes"], risk["lost"]) == (0, [])
    assert risk["units"][0]["durable_age_seconds"] >= 0


def test_what_is_durable_already_is_kept_when_the_notice_comes(node: Node) -> None:
    node.start("--quiet")
    node.staged(5)
    until("step 5 is durable", lambda: durable(node, 5))

    node.drain()

    (outcome,) = node.settled().values()
    assert outcome["kept"]
    assert outcome["generation"]["step"] == 5
    assert outcome["nbytes"] == 0


def test_a_notice_does_not_wait_for_what_trickles(node: Node) -> None:
    node.start("--quiet", "--quiet-bytes-per-second", "64KiB")
    node.staged(5, nbytes=64 * MEBI)
    until("it trickles", lambda: any(node.store.rglob("*evac-tmp*")))
    assert node.status()["risk"]["at_risk_bytes"] == 64 * MEBI

    node.drain()

    # At the trickle's own pace it would take a quarter of an hour.
    (outcome,) = node.settled().values()
    assert outcome["kept"]
    assert outcome["durable"]


def test_without_quiet_time_nothing_is_written_and_all_of_it_is_at_risk(node: Node) -> None:
    node.start("--no-quiet", "--plan-window-seconds", "20")
    node.staged(5, nbytes=MEBI)

    risk = node.status()["risk"]

    assert node.files() == []
    assert risk["at_risk_bytes"] == MEBI
    assert risk["window_seconds"] == 20
    assert risk["units"][0]["at_risk_steps"] is None
    assert 0 < risk["margin_seconds"] < 20


def test_a_stop_does_not_wait_for_what_trickles(tmp_path: Path) -> None:
    for node in node_at(tmp_path / "other"):
        node.start("--quiet", "--quiet-bytes-per-second", "64KiB")
        node.staged(5, nbytes=64 * MEBI)
        until("it trickles", lambda node=node: any(node.store.rglob("*evac-tmp*")))  # type: ignore[misc] # bound to this turn

        assert node.terminate() == 0
        assert node.files() == []


def test_a_store_that_takes_nothing_any_more_is_told_before_the_day(node: Node) -> None:
    node.start("--quiet", "--quiet-min-interval-seconds", "1", "--http", "--http-port", "0")
    worker = node.staged(5)
    until("step 5 is durable", lambda: durable(node, 5))
    assert node.status()["risk"]["lost"] == []

    with out_of_reach(node.store):
        worker.do("stage", step=6)

        until("what is new would be lost", lambda: node.status()["risk"]["lost"])
        page = node.status()["http"]["url"] + "/readyz"
        with pytest.raises(urllib.error.HTTPError) as unready:
            urllib.request.urlopen(page)
        assert "store" in unready.value.read().decode()

    until("step 6 is durable", lambda: durable(node, 6))
    assert node.status()["risk"]["lost"] == []


def test_what_is_at_risk_can_be_scraped(node: Node) -> None:
    node.start("--http", "--http-port", "0", "--plan-window-seconds", "20")
    node.staged(5, nbytes=MEBI)

    with urllib.request.urlopen(node.status()["http"]["url"] + "/metrics") as answer:
        lines = answer.read().decode().splitlines()

    shown = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    unit = node.status()["risk"]["units"][0]["unit"]
    assert float(shown[f'evac_at_risk_bytes{{unit="{unit}"}}']) == MEBI
    assert 0 < float(shown['evac_window_margin_seconds{unit=""}']) < 20
