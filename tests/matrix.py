"""A table of what was tried against what, printed at the end of a run and green.

A test fills a cell with ``record_property(matrix.name, (row, column))``, or is named in a table of
cells that tests elsewhere fill. A `Matrix` is a plug-in: the conftest of whoever has a table registers it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# A table has to fit where people read it.
WIDTH = 120
WORST = ("-", "ok", "skip", "FAIL")

Cell = tuple[str, str]


@dataclass(frozen=True)
class Named:
    """A cell that a test fills which does not say so itself.

    Attributes:
        file: Below the table's folder.
        given: One of the test's ids where only that is meant; else "".
    """

    cell: Cell
    file: str
    test: str
    given: str = ""


def named(cell: Cell, file: str, test: str) -> Named:
    """One, from the name that pytest gives a test: ``test_it`` or ``test_it[this]``."""
    name, _, given = test.rstrip("]").partition("[")
    return Named(cell, file, name, given)


@dataclass(eq=False)
class Matrix:
    """One table.

    Attributes:
        name: Of the property by which a test says which cell it fills.
        rows: In this order, as far as anything met them; others come behind. So with columns.
        here: The folder that the named files are in.
    """

    name: str
    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    here: Path
    elsewhere: Sequence[Named]
    _came: dict[Cell, str] = field(default_factory=dict)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tell a test which cells it fills, where it does not say so itself."""
        for item in items:
            if item.path.is_relative_to(self.here):
                test = named(("", ""), item.path.relative_to(self.here).as_posix(), item.name)
                for cell in cells_of(test, self.elsewhere):
                    item.user_properties.append((self.name, cell))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what came of a cell: the worst of all phases of all its tests."""
        came = {"passed": "ok", "skipped": "skip", "failed": "FAIL"}[report.outcome]
        for name, cell in report.user_properties:
            if name == self.name and isinstance(cell, tuple):
                self._came[cell] = max(self._came.get(cell, "-"), came, key=WORST.index)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print it, in as many blocks of columns as its width needs."""
        if not self._came:
            return
        rows = in_order((row for row, _ in self._came), self.rows)
        columns = in_order((column for _, column in self._came), self.columns)
        left = max(map(len, rows))
        terminalreporter.section(self.title)
        terminalreporter.write_line("-: cannot befall it, or none of its tests was run")
        for block in _blocks(columns, width=WIDTH - left):
            head = " ".join([" " * left, *(column.rjust(_width(column)) for column in block)])
            terminalreporter.write_line(head)
            for row in rows:
                said = (self._came.get((row, each), "-").rjust(_width(each)) for each in block)
                terminalreporter.write_line(" ".join([row.ljust(left), *said]))
            terminalreporter.write_line("")


def cells_of(test: Named, elsewhere: Iterable[Named]) -> list[Cell]:
    """The cells that a test fills, by its file, its name and its id."""
    return [
        one.cell
        for one in elsewhere
        # An id of several values begins with the one that is meant.
        if (one.file, one.test) == (test.file, test.test)
        and (not one.given or f"{test.given}-".startswith(f"{one.given}-"))
    ]


def in_order(met: Iterable[str], order: Sequence[str]) -> list[str]:
    """What was *met*, in this order; what is not in it behind."""
    left = dict.fromkeys(met)
    return [each for each in order if each in left] + [each for each in left if each not in order]


def _width(column: str) -> int:
    return max(len(column), len("FAIL"))


def _blocks(columns: list[str], *, width: int) -> Iterator[list[str]]:
    """As many columns side by side as there is room for."""
    block: list[str] = []
    for column in columns:
        if block and sum(_width(each) + 1 for each in [*block, column]) > width:
            yield block
            block = []
        block.append(column)
    yield block
