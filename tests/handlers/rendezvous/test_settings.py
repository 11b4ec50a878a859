"""The page of options: all of them, and their defaults."""

import re
from dataclasses import fields
from pathlib import Path

from torch.distributed.elastic.rendezvous import RendezvousParameters

import evac.rendezvous
from evac.rendezvous.settings import Settings, read_settings

PAGE = (Path(evac.rendezvous.__file__).parent / "README.md").read_text()
SOURCE = (Path(evac.rendezvous.__file__).parent / "settings.py").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE))


class Asked(RendezvousParameters):
    """Notes which options are read."""

    def get(self, key: str, default: object = None) -> object:
        self.config.setdefault("asked", []).append(key)
        return super().get(key, default)


def test_the_page_lists_each_option_that_is_read() -> None:
    parameters = Asked("evac", "h:1", "run", 1, 2)

    read_settings(parameters)

    assert set(ROWS) == set(parameters.config["asked"])


def test_each_setting_names_its_option_or_is_torchruns_own() -> None:
    about = dict(
        re.findall(r"^        (\w+): ((?:.|\n {12})*)", Settings.__doc__ or "", re.MULTILINE)
    )
    assert set(about) >= {one.name for one in fields(Settings)} - {"run", "minimum", "maximum"}
    named = {word for text in about.values() for word in re.findall(r"``(\w+)(?:=\w+)?``", text)}

    assert set(ROWS) <= named


def test_the_page_tells_the_defaults() -> None:
    made = read_settings(RendezvousParameters("evac", "h:1", "run", 1, 2))
    told = {name: float(value) for name, value in ROWS.items() if value.strip().isdigit()}

    assert told == {
        "join_timeout": made.join_seconds,
        "last_call_timeout": made.call_seconds,
        "confirm_timeout": made.confirm_seconds,
        "return_timeout": made.return_seconds,
        "connect_timeout": made.connect_seconds,
        "meet_timeout": made.meet_seconds,
        "keep_alive_interval": made.beat_seconds,
        "keep_alive_max_attempt": made.dead_seconds / made.beat_seconds,
    }
