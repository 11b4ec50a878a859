"""evac.toml explains every setting, and says the truth about each."""

import re
from pathlib import Path

from evacd.config import SETTINGS, Config, load
from evacd.install.pages import pages
from evacd.install.sample import sample

COPY = Path(__file__).parents[3] / "systemd/evac.toml"
# What the file says otherwise on purpose, as it comes and with every # removed.
ACTIVE = {"sockets.admin_group": "evac"}
SHOWN = {"store.targets": ("file:///mnt/checkpoints",), **ACTIVE}


def read(text: str, folder: Path) -> Config:
    file = folder / "evac.toml"
    file.write_text(text)
    return load(file, {}, {})


def changed(config: Config) -> dict[str, object]:
    """By dotted key, all that is not a default."""
    values = {one.key: getattr(getattr(config, one.section), one.name) for one in SETTINGS}
    return {one.key: values[one.key] for one in SETTINGS if values[one.key] != one.default}


def test_as_it_comes_it_changes_the_admins_group_and_nothing_else(tmp_path: Path) -> None:
    assert changed(read(sample(), tmp_path)) == ACTIVE


def test_without_its_comment_signs_it_names_every_setting_and_its_default(tmp_path: Path) -> None:
    config = read(re.sub(r"(?m)^#(?! |$)", "", sample()), tmp_path)

    assert set(config.origins) == {one.key for one in SETTINGS}
    assert changed(config) == SHOWN


def test_every_setting_is_explained_with_its_variable_and_flag() -> None:
    text = sample()

    assert [one.key for one in SETTINGS if f"# {one.env}, {one.flag}: " not in text] == []


def test_no_line_is_longer_than_a_terminal() -> None:
    assert [line for line in sample().splitlines() if len(line) > 100] == []


def test_the_copy_for_readers_is_up_to_date() -> None:
    assert COPY.read_text() == sample(), "run `make sample`, which writes systemd/evac.toml"


def test_it_is_what_is_installed() -> None:
    (page,) = (one for one in pages("/opt/evac/bin/python", systemd=252) if "toml" in one.path)

    assert (page.path, page.text) == ("/etc/evac/evac.toml", sample())
