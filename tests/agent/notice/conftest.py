from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from blockbuster import BlockBuster, blockbuster_ctx

from evacd.notice.metadata import open_session
from evacd.notice.simulate.gcp import GcpMetadata
from tests.agent.notice.cells import COLUMNS, SOURCES, cells_of, in_order


@pytest.fixture(autouse=True)
def no_blocking() -> Iterator[BlockBuster]:
    """Fail what blocks the event loop."""
    with blockbuster_ctx("evacd") as blocking:
        yield blocking


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as session:
        yield session


@pytest.fixture
def gce() -> GcpMetadata:
    return GcpMetadata()


@pytest.fixture
async def gce_url(gce: GcpMetadata) -> AsyncIterator[str]:
    async with TestServer(gce.app) as server:
        yield str(server.make_url("")).rstrip("/")


# --- the table of source x fault, at the end of the run ---------------------------------

HERE = Path(__file__).parent
# A table has to fit where people read it.
WIDTH = 120
WORST = ("-", "ok", "skip", "FAIL")

_CELLS: dict[tuple[str, str], str] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell a test which cells it fills, where it does not say so itself."""
    for item in items:
        if item.path.is_relative_to(HERE):
            name, _, given = item.name.removesuffix("]").partition("[")
            for cell in cells_of(item.path.relative_to(HERE).as_posix(), name, given):
                item.user_properties.append(("matrix", cell))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what came of a cell: the worst of all phases of all its tests."""
    came = {"passed": "ok", "skipped": "skip", "failed": "FAIL"}[report.outcome]
    for name, cell in report.user_properties:
        if name == "matrix" and isinstance(cell, tuple):
            _CELLS[cell] = max(_CELLS.get(cell, "-"), came, key=WORST.index)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print rows of sources, columns of faults."""
    if not _CELLS:
        return
    sources = in_order((source for source, _ in _CELLS), SOURCES)
    faults = in_order((fault for _, fault in _CELLS), COLUMNS)
    left = max(map(len, sources))
    terminalreporter.section("source x fault")
    terminalreporter.write_line("-: cannot befall it, or none of its tests was run")
    for block in _blocks(faults, width=WIDTH - left):
        head = " ".join([" " * left, *(fault.rjust(_width(fault)) for fault in block)])
        terminalreporter.write_line(head)
        for source in sources:
            said = (_CELLS.get((source, fault), "-").rjust(_width(fault)) for fault in block)
            terminalreporter.write_line(" ".join([source.ljust(left), *said]))
        terminalreporter.write_line("")


def _width(fault: str) -> int:
    return max(len(fault), len("FAIL"))


def _blocks(faults: list[str], *, width: int) -> Iterator[list[str]]:
    """As many columns side by side as there is room for."""
    block: list[str] = []
    for fault in faults:
        if block and sum(_width(each) + 1 for each in [*block, fault]) > width:
            yield block
            block = []
        block.append(fault)
    yield block
