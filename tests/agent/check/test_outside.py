"""Programs and the webhook."""

from pathlib import Path

from evacd.check import Verdict
from evacd.check.outside import check_cordon, check_departure
from evacd.config import CordonConfig, DepartureConfig


def test_the_programs_of_the_cordon_must_be_there(tmp_path: Path) -> None:
    program = tmp_path / "cordon"
    program.write_text("#!/bin/sh\n")

    assert check_cordon(CordonConfig()).verdict is Verdict.OK
    assert check_cordon(CordonConfig((str(program),))).verdict is Verdict.FAIL
    program.chmod(0o755)
    assert check_cordon(CordonConfig((str(program),))).verdict is Verdict.WARN
    assert check_cordon(CordonConfig((str(program),), ("no-such-one",))).verdict is Verdict.FAIL
    assert check_cordon(CordonConfig((str(program),), ("sh",))).verdict is Verdict.OK


def test_a_program_of_the_cordon_that_anybody_may_change_fails(tmp_path: Path) -> None:
    program = tmp_path / "cordon"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)

    for config in (CordonConfig((str(program),)), CordonConfig(("true",), (str(program),))):
        finding = check_cordon(config)
        assert finding.verdict is Verdict.FAIL
        assert "world-writable" in finding.detail
        assert finding.cure == f"chmod o-w {program}"


def test_the_secret_of_the_webhook_must_be_readable_and_private(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    config = DepartureConfig(webhook_url="http://me:hunter2@h/p", secret_file=secret)

    assert check_departure(DepartureConfig()).verdict is Verdict.OK
    assert check_departure(config).verdict is Verdict.FAIL
    secret.write_text("\n")
    assert check_departure(config).verdict is Verdict.FAIL
    secret.write_text("xyzzy")
    secret.chmod(0o644)
    assert check_departure(config).verdict is Verdict.WARN
    secret.chmod(0o600)
    finding = check_departure(config)
    assert finding.verdict is Verdict.OK
    assert "hunter2" not in finding.detail
    assert "xyzzy" not in finding.detail
