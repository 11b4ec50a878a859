"""The nursery, once for a whole run; and what came of it all, printed at the end."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deaths.dying import DEATHS
from tests.deaths.machine import Machine
from tests.deaths.moments import LATER, MOMENTS
from tests.deaths.nursery import Nursery
from tests.matrix import Matrix


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


@pytest.fixture
def machines(nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Makes machines; all of them gone at the end."""
    made: list[Machine] = []

    def make(*flags: str, **more: Any) -> Machine:
        made.append(Machine(nursery, tmp_path / f"m{len(made)}", *flags, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Tally:
    """How many daemons were killed, and in the middle of what."""

    def __init__(self) -> None:
        self._kills: Counter[str] = Counter()
        self._where: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a test counted."""
        for name, value in report.user_properties:
            if name == "kills" and report.when == "call" and isinstance(value, Counter):
                for label, times in value.items():
                    self._kills[label.split()[0]] += times
                    self._where.add(label)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print it."""
        if self._kills:
            terminalreporter.section("daemons killed by their own hand")
            told = ", ".join(f"{phase} {times}" for phase, times in self._kills.most_common())
            total, where = self._kills.total(), len(self._where)
            terminalreporter.write_line(f"{total} kills at {where} boundaries: {told}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tally())
    config.pluginmanager.register(
        Matrix(
            name="deaths",
            title="deaths x moments",
            rows=tuple(DEATHS),
            columns=(*MOMENTS, *LATER),
            here=Path(__file__).parent,
            elsewhere=(),
        )
    )
