from collections.abc import AsyncIterator, Iterator
from shutil import get_terminal_size

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from blockbuster import BlockBuster, blockbuster_ctx

from evacd.notice.metadata import open_session
from evacd.notice.simulate.gcp import GcpMetadata


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

_CELLS: dict[tuple[str, str], bool] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what came of a cell: good only where no phase of its test failed."""
    for name, cell in report.user_properties:
        if name == "matrix" and isinstance(cell, tuple):
            _CELLS[cell] = _CELLS.get(cell, True) and not report.failed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print rows of sources, columns of faults."""
    if not _CELLS:
        return
    sources = list(dict.fromkeys(source for source, _ in _CELLS))
    # The row that has most columns has them in their order.
    fullest = max(sources, key=lambda source: sum(row == source for row, _ in _CELLS))
    faults = dict.fromkeys(fault for source, fault in _CELLS if source == fullest)
    faults |= dict.fromkeys(fault for _, fault in _CELLS)
    words = {True: "ok", False: "FAIL", None: "-"}
    left = max(map(len, sources))
    terminalreporter.section("source x fault")
    for block in _blocks(list(faults), width=max(get_terminal_size().columns, 100) - left):
        head = " ".join([" " * left, *(fault.rjust(_width(fault)) for fault in block)])
        terminalreporter.write_line(head)
        for source in sources:
            said = (words[_CELLS.get((source, fault))].rjust(_width(fault)) for fault in block)
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
