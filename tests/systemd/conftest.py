"""A booted machine with evacd installed on it, as the README says."""

from collections.abc import Iterator

import pytest

from tests.services.skipping import or_skip
from tests.systemd.machine import BIN, Machine, booted

# Beside evac.toml, which so stays as it was written. The store is meant: the test looks into it.
DROP_IN = """\
[Service]
Environment=EVAC_STORE=file:///srv/checkpoints EVAC_STORE_IS_DURABLE=yes EVAC_CLOUD=none
Environment=EVAC_MEMORY_BUDGET=256MiB
"""


def installed(machine: Machine) -> Machine:
    """Install evacd, told its store by a drop-in, and start it."""
    machine.do(str(BIN / "evacd"), "install")
    machine.write("/etc/systemd/system/evacd.service.d/test.conf", DROP_IN)
    machine.do("systemctl", "daemon-reload")
    machine.do("systemctl", "start", "evacd")
    return machine


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine of the test's own, without evacd."""
    with or_skip(), booted(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One machine for all tests of a file, with evacd running."""
    with or_skip(), booted(tmp_path_factory.mktemp("machine")) as machine:
        yield installed(machine)
