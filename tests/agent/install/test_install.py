"""`evacd install` and `uninstall` on the tree of a machine that does not run."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.install.carry import Verdict, judge

pytestmark = pytest.mark.skipif(
    shutil.which("systemctl") is None or shutil.which("systemd-sysusers") is None,
    reason="systemd is not installed",
)
UNIT = "etc/systemd/system/evacd.service"
TOML = "etc/evac/evac.toml"
WANTS = "etc/systemd/system/multi-user.target.wants/evacd.service"
RECORD = "var/lib/evac/installed.json"


def evacd(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "evacd", *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "etc/systemd/system").mkdir(parents=True)
    return tree


def done(*arguments: str) -> str:
    """A command that has to succeed; its stdout."""
    found = evacd(*arguments)
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout


def files(root: Path) -> list[str]:
    """All but what systemd-sysusers keeps groups in."""
    found = (str(one.relative_to(root)) for one in root.rglob("*") if not one.is_dir())
    return sorted(one for one in found if one not in {"etc/group", "etc/gshadow", "etc/.pwd.lock"})


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_tree_that_is_not_there_is_wrong_usage_and_not_made(root: Path, command: str) -> None:
    found = evacd(command, "--root", f"{root}/none")

    assert found.returncode == 2
    assert f"--root: {root}/none: expected a folder that is there" in found.stderr
    assert not (root / "none").exists()


def test_it_writes_these_files_and_enables_the_unit(root: Path) -> None:
    done("install", "--root", str(root))

    assert files(root) == sorted(
        [
            TOML, UNIT, WANTS, RECORD,
            "etc/sysusers.d/evac.conf", "etc/tmpfiles.d/evac.conf",
            "etc/systemd/logind.conf.d/zz-evac.conf",
        ]
    )  # fmt: skip
    assert sys.executable in (root / UNIT).read_text()
    assert "evac:" in (root / "etc/group").read_text()
    assert (root / TOML).stat().st_mode & 0o777 == 0o640


def test_a_dry_run_says_the_same_and_does_nothing(root: Path) -> None:
    said = done("install", "--root", str(root), "--dry-run").splitlines()
    assert files(root) == []

    really = done("install", "--root", str(root)).splitlines()
    assert said == [line for line in really if not line.startswith("next ")]

    before = files(root)
    assert "remove" in done("uninstall", "--root", str(root), "--dry-run")
    assert files(root) == before


def test_an_install_that_fails_half_way_is_undone_as_well(root: Path) -> None:
    (root / "etc/tmpfiles.d").write_text("in the way")

    failed = evacd("install", "--root", str(root))

    assert failed.returncode != 0
    assert "tmpfiles.d" in failed.stderr
    assert {TOML, UNIT} <= set(files(root))
    done("uninstall", "--root", str(root))
    assert files(root) == ["etc/tmpfiles.d"]


def test_uninstall_leaves_nothing_of_it(root: Path) -> None:
    done("install", "--root", str(root))

    done("uninstall", "--root", str(root))

    assert files(root) == []
    assert (root / "etc/systemd/system").is_dir()
    assert not (root / "etc/evac").exists()


def test_what_an_admin_wrote_is_neither_overwritten_nor_removed(root: Path) -> None:
    done("install", "--root", str(root))
    (root / TOML).write_text("[store]\ntargets = ['file:///mnt/x']\n")

    again = done("install", "--root", str(root))
    away = done("uninstall", "--root", str(root))

    for said in (again, away):
        assert f"keep     {root / TOML} (changed by hand" in said
    assert (root / TOML).read_text().startswith("[store]")
    assert files(root) == [TOML]


def test_a_file_that_was_there_before_is_not_ours(root: Path) -> None:
    (root / UNIT).write_text("[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=a.target\n")

    assert f"keep     {root / UNIT}" in done("install", "--root", str(root))
    done("uninstall", "--root", str(root))

    assert files(root) == [UNIT]


def test_an_untouched_file_is_brought_up_to_date(root: Path) -> None:
    done("install", "--root", str(root))
    old = (root / UNIT).read_text().replace(sys.executable, "/opt/old/bin/python")
    record = (root / RECORD).read_text()
    now = hashlib.sha256((root / UNIT).read_bytes()).hexdigest()
    (root / UNIT).write_text(old)
    (root / RECORD).write_text(record.replace(now, hashlib.sha256(old.encode()).hexdigest()))

    assert f"update   {root / UNIT}" in done("install", "--root", str(root))
    assert sys.executable in (root / UNIT).read_text()


def test_one_that_was_disabled_stays_disabled(root: Path) -> None:
    done("install", "--root", str(root))
    (root / WANTS).unlink()

    done("install", "--root", str(root))

    assert WANTS not in files(root)


def test_it_can_be_done_again_after_it_was_interrupted(root: Path) -> None:
    done("install", "--root", str(root))
    (root / RECORD).unlink()
    (root / "etc/tmpfiles.d/evac.conf").unlink()
    (root / "etc/tmpfiles.d/.evac.conf.evac-new").write_text("half")

    done("install", "--root", str(root))
    done("uninstall", "--root", str(root))

    assert files(root) == []


def test_uninstall_of_nothing_says_so(root: Path) -> None:
    assert done("uninstall", "--root", str(root)).startswith("nothing ")


def test_a_record_that_is_none_is_told(root: Path) -> None:
    (root / RECORD).parent.mkdir(parents=True)
    (root / RECORD).write_text('{"version": 2}')

    found = evacd("uninstall", "--root", str(root))

    assert found.returncode == 1
    assert "not a record of evacd install" in found.stderr


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="systemd runs this machine")
def test_where_systemd_does_not_run_it_says_what_to_do() -> None:
    found = evacd("install", "--dry-run")

    assert found.returncode == 1
    assert "not run by systemd" in found.stderr


sums = st.sampled_from(["a", "b", "c"])


@given(wanted=sums, found=st.none() | sums, remembered=st.none() | sums)
def test_only_what_is_missing_or_ours_is_ever_written(
    wanted: str, found: str | None, remembered: str | None
) -> None:
    verdict = judge(wanted=wanted, found=found, remembered=remembered)

    writes = verdict in {Verdict.WRITE, Verdict.UPDATE}
    assert writes == (found != wanted and found in {None, remembered})
    assert (verdict is Verdict.KEEP) == (found not in {None, wanted, remembered})
