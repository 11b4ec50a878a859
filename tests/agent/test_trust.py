"""Whose a file is, with real owners and modes where we are root."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.trust import Doubt, doubt_of, doubt_of_path, program_of

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
STRANGER = 12345


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """One that anybody may run, two folders deep."""
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    for each in (folder, folder.parent, tmp_path):
        each.chmod(0o755)
    program = folder / "says"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


kinds = st.sampled_from([stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK])
ids = st.sampled_from([0, 7, STRANGER])


@given(kinds, st.integers(0, 0o7777), ids, ids, ids, ids)
def test_what_a_stranger_may_change_is_never_trusted(
    kind: int, bits: int, owner: int, group: int, own_user: int, own_group: int
) -> None:
    doubt = doubt_of(
        "/x", mode=kind | bits, owner=owner, group=group, own_user=own_user, own_group=own_group
    )

    by_all = bits & stat.S_IWOTH
    by_group = bits & stat.S_IWGRP and group not in (0, own_group)
    kept_apart = kind == stat.S_IFLNK or (kind == stat.S_IFDIR and bits & stat.S_ISVTX)
    open_to_others = not kept_apart and bool(by_all or by_group)
    assert (doubt is not None) == (owner not in (0, own_user) or open_to_others)


def test_a_file_of_ones_own_below_a_sticky_folder_is_trusted(program: Path) -> None:
    program.parent.chmod(0o1777)

    assert doubt_of_path(program) is None


def mode(bits: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(bits)


def given_away(path: Path) -> None:
    os.chown(path, STRANGER, -1)


def open_to_a_group(path: Path) -> None:
    os.chown(path, 0, STRANGER)
    path.chmod(0o775)


FAULTS = [
    pytest.param(mode(0o757), "world-writable", "chmod o-w", id="world-writable"),
    pytest.param(given_away, f"user {STRANGER}", "chown root", id="a stranger's", marks=AS_ROOT),
    pytest.param(
        open_to_a_group, f"group {STRANGER}", "chmod g-w", id="a group may write", marks=AS_ROOT
    ),
]


@pytest.mark.parametrize("up", [0, 1, 2], ids=["itself", "its folder", "the folder above"])
@pytest.mark.parametrize(("fault", "reason", "cure"), FAULTS)
def test_a_path_is_as_safe_as_the_least_safe_on_its_way(
    program: Path, fault: Callable[[Path], None], reason: str, cure: str, up: int
) -> None:
    wrong = (program, *program.parents)[up]
    fault(wrong)

    doubt = doubt_of_path(program)

    assert doubt is not None
    assert reason in doubt.reason
    assert str(wrong) in doubt.reason
    assert doubt.cure.startswith(cure)


@AS_ROOT
def test_the_own_group_may_write(program: Path) -> None:
    os.chown(program, 0, os.getegid())
    program.chmod(0o775)

    assert doubt_of_path(program) is None


@pytest.mark.parametrize("to", ["../elsewhere/says", "{}/outer/elsewhere/says"])
def test_a_link_is_followed_to_what_is_run(program: Path, tmp_path: Path, to: str) -> None:
    elsewhere = program.parent.parent / "elsewhere"
    elsewhere.mkdir()
    program.rename(elsewhere / "says")
    program.symlink_to(to.format(tmp_path))
    assert doubt_of_path(program) is None
    elsewhere.chmod(0o777)

    doubt = doubt_of_path(program)

    assert doubt is not None
    assert str(elsewhere) in doubt.reason


@AS_ROOT
def test_a_strangers_link_in_a_sticky_folder_is_not_followed(program: Path) -> None:
    program.parent.chmod(0o1777)
    link = program.with_name("link")
    link.symlink_to(program)
    os.chown(link, STRANGER, -1, follow_symlinks=False)

    doubt = doubt_of_path(link)

    assert doubt is not None
    assert str(link) in doubt.reason


def test_a_doubtful_folder_is_told_even_where_the_file_is_missing(program: Path) -> None:
    program.parent.chmod(0o777)

    assert isinstance(doubt_of_path(program.with_name("missing")), Doubt)
    program.parent.chmod(0o755)
    with pytest.raises(FileNotFoundError):
        doubt_of_path(program.with_name("missing"))


def test_links_in_a_circle_end(program: Path) -> None:
    program.unlink()
    program.symlink_to(program)

    with pytest.raises(OSError, match="symbolic links"):
        doubt_of_path(program)


def test_a_program_is_found_in_the_path_that_it_would_have(program: Path) -> None:
    environ = {"PATH": f"/no/such/folder:{program.parent}"}

    assert program_of(["says"], environ) == str(program)
    assert program_of(["says"], {"PATH": "/no/such/folder"}) is None
    program.parent.chmod(0o777)
    assert isinstance(program_of(["says"], environ), Doubt)


@pytest.mark.parametrize("before", [(), ("-x", "-u")])
def test_an_interpreters_script_has_to_be_safe_too(program: Path, before: tuple[str, ...]) -> None:
    command = ["/bin/sh", *before, str(program)]
    environ = {"PATH": os.defpath}
    assert program_of(command, environ) == "/bin/sh"
    program.chmod(0o777)

    assert isinstance(program_of(command, environ), Doubt)


def test_what_is_only_told_to_a_program_may_be_anybodys(program: Path) -> None:
    program.chmod(0o777)
    environ = {"PATH": os.defpath}

    assert program_of(["/bin/cat", str(program)], environ) == "/bin/cat"
    assert program_of(["/bin/sh", "-c", "true", str(program)], environ) == "/bin/sh"
