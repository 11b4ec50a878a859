"""The table of departures names tests that are there."""

from pathlib import Path

import pytest

from tests.handlers.rendezvous.cells import COLUMNS, ROWS, filled

HERE = Path(__file__).parent


@pytest.mark.parametrize("file", sorted({one.file for one in filled()}))
def test_what_fills_a_cell_exists(file: str) -> None:
    text = (HERE / file).read_text()

    wanted = {one.test for one in filled() if one.file == file}
    assert [one for one in wanted if f"def {one}(" not in text] == []


def test_every_row_and_column_is_met() -> None:
    assert {one.cell[0] for one in filled()} == {*ROWS}
    assert {one.cell[1] for one in filled()} == {*COLUMNS}
