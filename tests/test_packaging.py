"""What an installed evac promises to whoever imports it."""

import subprocess
import sys
from importlib.metadata import entry_points, requires
from pathlib import Path

import pytest

import evac
import evacd

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import evac
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_importing_evac_loads_the_standard_library_only() -> None:
    root = Path(evac.__file__).parents[1]
    done = subprocess.run(
        # Neither site-packages nor the environment: what is missing there would be an error.
        [sys.executable, "-S", "-I", "-c", SCRIPT, str(root)],
        capture_output=True,
        text=True,
        check=True,
    )

    loaded = set(done.stdout.split())
    assert loaded - sys.stdlib_module_names - {"__main__"} == {"evac"}


def test_evac_without_extras_requires_nothing() -> None:
    assert [one for one in requires("evac") or () if "extra ==" not in one] == []


@pytest.mark.parametrize("name", ["evac", "evacd"])
def test_both_commands_are_installed(name: str) -> None:
    (command,) = entry_points(group="console_scripts", name=name)

    assert callable(command.load())


@pytest.mark.parametrize("package", [evac, evacd])
def test_both_packages_say_that_they_are_typed(package: object) -> None:
    file = getattr(package, "__file__", None)

    assert file is not None
    assert (Path(file).parent / "py.typed").exists()
