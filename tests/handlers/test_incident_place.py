from pathlib import Path

import pytest

from evac.incident import DEFAULT, place, report_command

STATUS = {"journal": "/daemon/incidents.sqlite"}


@pytest.mark.parametrize(
    ("environ", "status", "where"),
    [
        ({}, None, DEFAULT),
        ({}, {}, DEFAULT),
        ({}, {"journal": ""}, DEFAULT),
        ({}, STATUS, Path("/daemon/incidents.sqlite")),
        ({"EVAC_STATE_DIR": "/state"}, STATUS, Path("/state/incidents.sqlite")),
        ({"EVAC_STATE_DIR": "/state", "EVAC_JOURNAL": "/j"}, STATUS, Path("/j")),
        ({"EVAC_STATE_DIR": "", "EVAC_JOURNAL": ""}, STATUS, Path("/daemon/incidents.sqlite")),
    ],
)
def test_what_a_person_says_goes_before_what_the_daemon_says(
    environ: dict[str, str], status: dict[str, str] | None, where: Path
) -> None:
    assert place(environ, status) == where


def test_the_command_names_the_journal_only_where_it_has_to() -> None:
    assert report_command({}) == "evac report"
    assert report_command({"journal": str(DEFAULT)}) == "evac report"
    assert report_command({"journal": "/a b/x"}) == "evac report --journal '/a b/x'"
