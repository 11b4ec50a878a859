"""`evac drill` for people: who would be lost, and by how much."""

from typing import Any

from evac.drill import render, wait


def report(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "id": "drill-1",
        "flush": True,
        "running": False,
        "reason": "",
        "window_seconds": 30.0,
        "reserve_seconds": 2.0,
        "predicted_margin_seconds": -3.5,
        "drilled_margin_seconds": 4.25,
        "lost": [],
        "units": [
            {
                "unit": "alice/llm",
                "step": 120,
                "nbytes": 4_100_000_000,
                "predicted_margin_seconds": -3.5,
                "drilled_margin_seconds": 4.25,
                "predicted_lost": True,
                "drilled_lost": False,
                "reason": "",
            }
        ],
    }
    return plain | changes


def test_predicted_and_drilled_stand_beside_each_other() -> None:
    text = render(report())

    assert "alice/llm  120   4.10 GB  -3.5 s     +4.2 s   safe" in text
    assert "margin   predicted -3.5 s, drilled +4.2 s" in text
    assert "0 of 1 would have been lost" in text


def test_a_plan_alone_has_no_drilled_margin() -> None:
    unit = report()["units"][0] | {
        "drilled_margin_seconds": None, "drilled_lost": None, "reason": "needs 41.2 s",
    }  # fmt: skip
    text = render(
        report(flush=False, units=[unit], lost=["alice/llm"], drilled_margin_seconds=None)
    )

    assert "LOST: needs 41.2 s" in text
    assert "drilled" not in text.splitlines()[-2]
    assert text.endswith("1 of 1 would be lost")


def test_an_empty_node_says_so() -> None:
    assert "nobody is on board" in render(report(units=[]))


def test_a_drill_that_gave_way_says_so() -> None:
    assert render(report(reason="it gave way to a real flush")).endswith(
        "it gave way to a real flush"
    )


def test_it_is_waited_for_until_it_has_ended() -> None:
    answers = [{"drill": report(running=True)}, {"drill": report(running=False)}]

    assert wait(lambda: answers.pop(0)) == report()
    assert answers == []
