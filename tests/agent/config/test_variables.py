import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evac
from evacd.config import SETTINGS, Unread, unread
from evacd.config.variables import OTHERS, distance

words = st.text(alphabet="AB_", max_size=6)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("EVAC_STOER", "EVAC_STORE"),
        ("EVAC_LOGLEVEL", "EVAC_LOG_LEVEL"),
        ("EVAC_STORE_TARGETS", "EVAC_STORE"),
        ("EVAC_SOCKETS_WORKLOAD", "EVAC_SOCKET"),
        ("EVAC_MEMORY_SIZE", ""),
        ("EVAC_JOURNALS", "EVAC_JOURNAL"),
    ],
)
def test_what_looks_meant_is_found(name: str, meant: str) -> None:
    assert unread({name: "1", "EVAC_CLOUD": "none"}) == (Unread(name, meant),)


@pytest.mark.parametrize(
    "name", ["PATH", "EVAC", "EVAC_SITE_RACK", "EVACD_STORE", "EVAC_DASHBOARD"]
)
def test_what_is_somebody_else_s_is_let_be(name: str) -> None:
    assert unread({name: "1"}) == ()


def test_what_any_part_of_evac_reads_is_known() -> None:
    """Every variable that the client side names."""
    folder = Path(evac.__file__).parent
    text = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    read = set(re.findall(r"EVAC_[A-Z_]*[A-Z]", text))

    assert read - {one.env for one in SETTINGS} == set(OTHERS) - {"EVAC_CONFIG"}
    assert unread(dict.fromkeys({*read, *OTHERS, *(one.env for one in SETTINGS)}, "1")) == ()


@given(words, words)
def test_a_distance_is_one(one: str, other: str) -> None:
    assert (distance(one, other) == 0) == (one == other)
    assert distance(one, other) == distance(other, one)
    assert abs(len(one) - len(other)) <= distance(one, other) <= max(len(one), len(other))


@given(words, words, words)
def test_a_detour_is_no_shorter(one: str, other: str, way: str) -> None:
    assert distance(one, other) <= distance(one, way) + distance(way, other)
