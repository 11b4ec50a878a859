"""`evac interval`, as a person calls it."""

import json

import pytest

from evac.cli import main


def test_the_advice_is_a_table_around_the_best_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["interval", "--stall", "0.2s", "--restart", "5m", "--between", "1h"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("stage every 39.7 s\n")
    marked = [line for line in page.splitlines() if line.startswith("→")]
    assert len(marked) == 1
    assert marked[0].split()[1:3] == ["39.7", "s"]
    assert "90.6 %" in marked[0]
    assert page.endswith("it would be a net consumer.\n")


def test_the_share_of_stalls_stretches_the_interval_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["interval", "--stall", "6s", "--between", "6h", "--share", "0.005"]) == 0
    assert "stage every 20 min 00 s, so that stalls take no more than 0.5 %" in (
        capsys.readouterr().out
    )


def test_a_job_that_only_burns_hours_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["interval", "--stall", "6", "--between", "4min", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["net_consumer"] is True
    assert told["shares"]["restarts"] == pytest.approx(300 / 240)
    assert told["break_even"] > 240


@pytest.mark.parametrize("wrong", ["5 weeks", "-3s", "1e3", "", "nan"])
def test_what_is_no_duration_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["interval", "--stall", wrong, "--between", "1h"])
    assert refused.value.code == 2
    assert "--stall" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ("--between", "0"),
        ("--between", "1h", "--share", "0"),
        ("--between", "1h", "--share", "nan"),
    ],
)
def test_what_no_job_can_have_is_wrong_usage(
    wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["interval", "--stall", "1", *wrong]) == 2
    assert f"evac: {wrong[-2]}: {wrong[-1]}: expected " in capsys.readouterr().err
