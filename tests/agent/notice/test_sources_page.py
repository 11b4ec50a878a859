"""The page of sources names every source that there is, and no setting that there is not."""

import re
from contextlib import AsyncExitStack
from pathlib import Path

import evacd.notice
from evacd.clock import SystemClock
from evacd.config import SETTINGS, load
from evacd.config.table import SECTIONS
from evacd.listening import independent, of_cloud

PAGE = (Path(evacd.notice.__file__).parent / "SOURCES.md").read_text()
ALL = {
    "aws.capacity_block_end": "2040-01-01T00:00:00Z",
    "shutdown.watch": "on",
    "node.watch": "on",
    "user.file": "/nonexistent",
    "user.exec": "true",
    "user.http": "http://127.0.0.1:1",
}


async def test_every_source_is_on_the_page() -> None:
    config = load(None, {}, ALL)
    async with AsyncExitStack() as opened:
        sources = list(await independent(config, SystemClock(), opened, environ={}))
        for cloud in ("aws", "gcp", "azure"):
            sources += await of_cloud(config, cloud, SystemClock(), opened)

    assert len(sources) == 15
    assert [each.name for each in sources if f"`{each.name}`" not in PAGE] == []


def test_every_setting_on_the_page_can_be_set() -> None:
    named = set(re.findall(rf"`((?:{'|'.join(SECTIONS)})\.[a-z_]+)`", PAGE))

    assert len(named) > 10
    assert named <= {one.key for one in SETTINGS}
