"""Who a workload is: arguments, else the launcher's environment, else defaults."""

import pytest

from evac._settings import DEFAULT_SOCKET, read_settings
from evac.wire import Register


def test_arguments_win_over_the_environment() -> None:
    settings = read_settings(
        {"EVAC_JOB": "a", "RANK": "1", "WORLD_SIZE": "2", "EVAC_SOCKET": "/a"},
        job="b",
        rank=4,
        world=8,
        socket="/b",
    )
    assert settings.socket == "/b"
    assert settings.register == Register(job="b", rank=4, world=8)


def test_torchrun_names_job_rank_world_and_run() -> None:
    settings = read_settings({"TORCHELASTIC_RUN_ID": "r1", "RANK": "3", "WORLD_SIZE": "4"})
    assert settings.register == Register(job="r1", rank=3, world=4, run="r1")
    assert settings.socket == DEFAULT_SOCKET


def test_slurm_names_job_rank_world_and_run() -> None:
    settings = read_settings(
        {
            "SLURM_JOB_NAME": "gpt",
            "SLURM_JOB_ID": "77",
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "2",
            "EVAC_PRIORITY": "-5",
        }
    )
    assert settings.register == Register(job="gpt", rank=0, world=2, priority=-5, run="77")


def test_torchruns_default_run_id_names_no_job() -> None:
    with pytest.raises(ValueError, match="EVAC_JOB"):
        read_settings({"TORCHELASTIC_RUN_ID": "none"})


@pytest.mark.parametrize(
    ("environment", "arguments", "said"),
    [
        ({}, {}, "job: expected a name"),
        ({}, {"job": "a/b"}, "register.job: 'a/b' does not match"),
        ({}, {"job": ".."}, "does not match"),
        ({}, {"job": ""}, "does not match"),
        ({"RANK": "x"}, {"job": "a"}, "RANK: expected an integer, got 'x'"),
        ({}, {"job": "a", "rank": 1}, "rank: expected below world"),
        ({}, {"job": "a", "rank": -1}, "outside"),
        ({}, {"job": "a", "world": 0}, "outside"),
        ({}, {"job": "a", "rank": "0"}, "expected int"),
        ({}, {"job": "a", "priority": 10**9}, "outside"),
        ({}, {"job": "a", "mode": "eager"}, "staged or callback, got 'eager'"),
        ({}, {"job": "a", "mode": "callback"}, "need_seconds: expected above 0"),
        ({}, {"job": "a", "need_seconds": -1.0}, "outside"),
        ({}, {"job": "a", "need_seconds": float("nan")}, "outside"),
        ({}, {"job": "a", "need_seconds": object()}, "JSON"),
        ({}, {"job": "a", "run": "r" * 129}, "longer than 128"),
        ({}, {"job": "a", "run": "\ud800"}, "surrogates"),
        ({}, {"job": "a", "socket": "/" + "x" * 107}, "below 108 bytes"),
    ],
)
def test_a_wrong_value_is_refused_at_once(
    environment: dict[str, str], arguments: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        read_settings(environment, **arguments)  # type: ignore[arg-type]  # wrong on purpose
