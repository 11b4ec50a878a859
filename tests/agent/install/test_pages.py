"""The unit and its companions, as systemd's own tools judge them; nothing is booted here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evacd.install.pages import Page, pages

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
# Ten times the score that systemd/README.md states, and a little: versions weigh differently.
EXPOSURE = 35


def page(name: str, *, python: str = sys.executable, systemd: int = 252) -> Page:
    (found,) = (one for one in pages(python, systemd=systemd) if one.path.endswith(name))
    return found


def written(folder: Path, *, systemd: int) -> Path:
    file = folder / "evacd.service"
    file.write_text(page("evacd.service", systemd=systemd).text)
    return file


def version() -> int:
    out = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True)
    return int(out.stdout.split()[1])


@needs_systemd
def test_systemd_has_no_complaint_about_the_unit(tmp_path: Path) -> None:
    unit = written(tmp_path, systemd=version())

    done = subprocess.run(
        [str(ANALYZE), "verify", str(unit)], capture_output=True, text=True, timeout=60
    )

    # It exits with 0 also where it ignores a value that it does not understand.
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_its_exposure_is_not_above_what_is_stated(tmp_path: Path) -> None:
    unit = written(tmp_path, systemd=version())

    done = subprocess.run(
        [str(ANALYZE), "security", "--offline=yes", f"--threshold={EXPOSURE}", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stdout[-2000:]


def test_an_older_systemd_is_not_given_what_it_would_warn_of() -> None:
    def kept(systemd: int) -> bool:
        lines = page("evacd.service", systemd=systemd).text.splitlines()
        return "FileDescriptorStorePreserve=yes" in lines

    assert [kept(252), kept(253), kept(254), kept(257)] == [False, False, True, True]


@pytest.mark.parametrize(
    "python",
    [
        # As README says to install it: pip's programs name the one that made the environment.
        *(f"/opt/evac/bin/python{version}" for version in ("", "3", "3.11", "3.14t")),
        "/opt/evac/bin/python/opt/evac/bin/python",
        "/srv/venv/bin/python3",
    ],
)
def test_the_unit_starts_the_python_that_installed_it(python: str) -> None:
    text = page("evacd.service", python=python).text

    assert f"\nExecStart={python} -P -m evacd run --config /etc/evac/evac.toml\n" in text
    assert text.replace(python, "") == page("evacd.service", python="").text


@pytest.mark.parametrize(
    ("python", "word"),
    [
        ("/opt/my venv/bin/python", '"/opt/my venv/bin/python"'),
        ("/opt/100%/python", "/opt/100%%/python"),
        ('/opt/a"b/python', '"/opt/a\\"b/python"'),
    ],
)
def test_an_odd_path_stays_one_word(python: str, word: str) -> None:
    assert f"\nExecStart={word} -P -m evacd" in page("evacd.service", python=python).text


@needs_systemd
def test_systemd_finds_an_interpreter_with_a_space_in_its_path(tmp_path: Path) -> None:
    python = tmp_path / "my venv" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    unit = tmp_path / "evacd.service"
    unit.write_text(page("evacd.service", python=str(python), systemd=version()).text)

    done = subprocess.run(
        [str(ANALYZE), "verify", str(unit)], capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_drop_in_for_logind_sorts_behind_everybody_elses() -> None:
    ours = os.path.basename(page("zz-evac.conf").path)

    for theirs in ("99-kubelet.conf", "unattended-upgrades-logind-maxdelay.conf"):
        assert ours > theirs


def test_a_stop_may_take_as_long_as_the_longest_notice_and_less_than_a_forced_shutdown() -> None:
    text = page("evacd.service").text
    (minutes,) = (
        int(line.removeprefix("TimeoutStopSec=").removesuffix("min"))
        for line in text.splitlines()
        if line.startswith("TimeoutStopSec=")
    )

    assert 15 < minutes < 30
