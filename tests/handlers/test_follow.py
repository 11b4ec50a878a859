"""Who follows a drain hears a verdict once, and not before anything was decided."""

import pytest

from evac.follow import follow


def test_the_verdict_comes_once_and_last(capsys: pytest.CaptureFixture[str]) -> None:
    kept: dict[str, object] = {
        "unit": "a/job",
        "kept": True,
        "generation": None,
        "nbytes": 1,
        "seconds": 1.0,
    }
    kept |= {"durable": True, "store": "", "kind": "full"}
    lost = {"unit": "b/job", "kept": False, "reason": "connection refused"}
    order: dict[str, object] = {
        "id": "o-1",
        "source": "operator",
        "kind": "drain",
        "confidence": "certain",
    }
    order |= {"seconds_left": 9.0, "settled": False}
    said = [[], [lost], [lost, kept], [kept]]
    node = {"version": "1", "node": "n", "memory": {"used": 0, "budget": 1}, "workloads": []}
    told = [
        {**node, "order": order | {"settled": one is said[-1]}, "outcomes": one} for one in said
    ]

    follow(iter([*told]).__next__, as_json=False)

    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "o-1: running",
        "o-1: running; not saved yet: b/job (connection refused)",
        "o-1: running, 1 saved so far; not saved yet: b/job (connection refused)",
        "o-1: 1 saved, 0 lost",
    ]
