"""The page of options: all of them, and their defaults."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

import evac.rendezvous
from evac.rendezvous.etcd_access import NO_FILES, EtcdFiles
from evac.rendezvous.handler import create
from evac.rendezvous.settings import OPTIONS, Settings, mistyped, read_settings

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

    assert set(ROWS) == set(parameters.config["asked"]) == set(OPTIONS)


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
        "keep_timeout": made.keep_seconds,
        "last_call_timeout": made.call_seconds,
        "confirm_timeout": made.confirm_seconds,
        "return_timeout": made.return_seconds,
        "connect_timeout": made.connect_seconds,
        "meet_timeout": made.meet_seconds,
        "keep_alive_interval": made.beat_seconds,
        "keep_alive_max_attempt": made.dead_seconds / made.beat_seconds,
    }


def asked(conf: Mapping[str, str], endpoint: str = "h:1") -> RendezvousParameters:
    return RendezvousParameters("evac", endpoint, "run", 1, 2, **{"store": "etcd", **conf})


TLS = {"protocol": "https", "ca_cert": "/ca", "ssl_cert": "/cert", "ssl_cert_key": "/key"}


def test_an_etcd_is_plain_unless_it_is_said() -> None:
    assert str(read_settings(asked({})).address) == "etcd://h:1/evac/run"
    assert read_settings(asked({})).etcd == NO_FILES
    for made in (asked(TLS), asked({**TLS, "protocol": ""}, "https://h:1")):
        assert str(read_settings(made).address) == "etcds://h:1/evac/run"
        assert read_settings(made).etcd == EtcdFiles("/ca", "/cert", "/key")
    user = {"user": "me", "password_file": "/word"}
    assert read_settings(asked(user)).etcd == EtcdFiles(user="me", password="/word")
    assert read_settings(asked({}, "https://h")).address.port == 2379


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ({"protocol": "gopher"}, "protocol: expected http or https, got 'gopher'"),
        ({"store": "tcpstore", "protocol": "https"}, "protocol: torch's TCPStore has no https"),
        ({"store": "tcpstore", "user": "me"}, "user: torch's TCPStore takes none"),
        ({"store": "etcds"}, "store: expected tcpstore or etcd, got 'etcds'"),
        ({**TLS, "protocol": "http"}, "ca_cert: is for protocol=https"),
        ({"protocol": "https", "ssl_cert": "/c"}, "ssl_cert, ssl_cert_key: expected both"),
        ({"user": "me"}, "user, password_file: expected both, or neither"),
        ({"password_file": "/word"}, "user, password_file: expected both, or neither"),
        ({"keep_timeout": "29"}, "keep_timeout: expected 30 or more, got 29"),
    ],
)
def test_what_makes_no_sense_of_an_etcd_is_told(conf: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=f"^--rdzv-conf {told}"):
        read_settings(asked(conf))


def test_a_mistyped_option_is_told_and_torchs_own_are_not(caplog: pytest.LogCaptureFixture) -> None:
    read_settings(asked({"is_hots": "false", "timeout": "900", "rank": "0", "read_timeout": "60"}))

    assert caplog.messages == ["--rdzv-conf is_hots: read by nobody; is is_host meant?"]
    assert mistyped(["pasword_file", "join-timeout", *OPTIONS]) == [
        ("pasword_file", "password_file"), ("join-timeout", "join_timeout"),
    ]  # fmt: skip


def test_a_protocol_that_the_endpoint_contradicts_is_told() -> None:
    with pytest.raises(ValueError, match="protocol: http, but --rdzv-endpoint begins with https"):
        read_settings(asked({"protocol": "http"}, "https://h:1"))


def test_a_file_that_is_not_there_is_told_before_anything_begins(tmp_path: Path) -> None:
    conf = {"user": "me", "password_file": str(tmp_path / "none")}

    with pytest.raises(ValueError, match="none: No such file or directory"):
        create(asked(conf))


def test_no_job_lies_below_another() -> None:
    parameters = RendezvousParameters("evac", "h:1", "team/run", 1, 2)

    assert read_settings(parameters).address.prefix == "evac/team%2Frun"
