"""SECURITY.md names tests that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_defence_has_the_test_that_the_page_names() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    named, file = [], ""
    for found in re.finditer(r"`((?:[a-z_]+/)*test_[a-z_]+\.py)?(?:::(test_\w+))?`", page):
        file = found[1] or file
        if found[0] != "``":
            named.append((file, found[2]))
    assert len(named) > 20
    for path, test in named:
        source = (ROOT / "tests" / "agent" / path).read_text()
        assert test is None or f"def {test}(" in source, (path, test)


def test_every_word_of_the_wire_is_somebodys_in_its_table() -> None:
    from evacd.workloads.session import WORDS

    page = (ROOT / "SECURITY.md").read_text()
    table = page[page.index("## Who may do what") : page.index("## What is defended")]
    words = {kind.type for kinds in WORDS.values() for kind in kinds}
    assert [word for word in sorted(words) if f"`{word}`" not in table] == []
