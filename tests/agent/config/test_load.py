"""One file, `EVAC_*`, flags: precedence, places, and what is refused."""

from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.errors import ConfigError
from evacd.config import SETTINGS, Budget, Config, Setting, explain, load
from evacd.config.entries import CONFIDENCE_WORDS, POLICY_WORDS, WHERE_WORDS
from evacd.facts import Confidence
from evacd.notice.aws import Policy
from evacd.notice.node import Where


@dataclass(frozen=True)
class Sample:
    """A kind's values: TOML text with the same as plain text, and wrong ones."""

    good: tuple[tuple[str, str], ...]
    wrong: tuple[str, ...]
    wrong_text: tuple[str, ...]


SECONDS = Sample(
    (("0.5", "0.5"), ("7", "7")), ('"7"', "-1", "nan", "inf", "true", "1" * 400), ("x", "-1")
)
TEXT = Sample((('"a"', "a"), ('"b c"', "b c")), ("1", "[]", '"a\\u0000b"'), ("a\0b",))
ABOVE = Sample((("0.5", "0.5"), ("7", "7")), ('"7"', "-1", "0", "nan"), ("x", "0"))
BOOLEAN = Sample((("true", "yes"), ("false", "0")), ('"true"', "1"), ("maybe",))
WATCH = Sample((('"on"', "on"), ('"off"', "off")), ('"yes"', "true", "1"), ("maybe",))
SAMPLES: dict[str, Sample] = {
    "store.targets": Sample(
        (('["file:///a"]', "file:///a"), ('["file:///a", "file:///b"]', "file:///a, file:///b")),
        ('"file:///a"', "[1]", '["/a"]', '[""]'),
        ("/a", "file:///a,b"),
    ),
    "store.durable_anyway": BOOLEAN,
    "store.keep": Sample((("1", "1"), ("3", "3")), ("-1", "1.5", "true", '"1"'), ("x",)),
    "notice.cloud": Sample((('"none"', "none"), ('"gcp"', "gcp")), ('"gpc"', "1", "[]"), ("aw",)),
    "notice.metadata_url": Sample(
        (('"http://127.0.0.1:80"', "http://127.0.0.1:80"), ('"http://[::1]:9"', "http://[::1]:9")),
        (
            '"127.0.0.1"',
            '"https://1.2.3.4"',
            '"http://metadata.google.internal"',
            '"http://h/p"',
            '"http://h:99999"',
            '"ftp://h"',
            "1",
            '"http://["',
        ),
        ("http://", "http://a b"),
    ),
    "notice.poll_seconds": Sample((("0.2", "0.2"), ("5", "5")), ("0.1", "-1", '"1"'), ("x", "0")),
    "notice.advise_again_seconds": ABOVE,
    "aws.ipv6": BOOLEAN,
    "aws.rebalance": BOOLEAN,
    "aws.hook_seconds": SECONDS,
    "aws.policies": Sample(
        (('{instance-stop = "planned"}', "instance-stop=planned"), ("{}", " ,")),
        ("1", '"instance-stop"', '{instance-stop = "later"}', '{"a b" = "early"}', "{a = 1}"),
        ("instance-stop", "instance-stop=later", "=early"),
    ),
    "aws.ignored_events": Sample((('["a", "b"]', "a,b"),), ('"a"', "[1]"), ("a\0b",)),
    "aws.capacity_block_end": Sample(
        (
            ('"2026-03-01T11:30:00Z"', "2026-03-01T11:30:00Z"),
            ("2026-03-01T11:30:00+01:00", "2026-03-01T11:30:00+01:00"),
        ),
        ('"2026-03-01T11:30:00"', "2026-03-01T11:30:00", "2026-03-01", '"soon"', "1"),
        ("soon", "2026-03-01T11:30:00"),
    ),
    "aws.early_seconds": SECONDS,
    "gcp.window_seconds": SECONDS,
    "gcp.stop_window_seconds": SECONDS,
    "gcp.trust_true_at_boot": BOOLEAN,
    "azure.machine": TEXT,
    "azure.preempt_assume_seconds": SECONDS,
    "azure.acknowledge": BOOLEAN,
    "azure.api_version": TEXT,
    "shutdown.watch": WATCH,
    "shutdown.budget_seconds": SECONDS,
    "shutdown.run_dir": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "shutdown.bus_address": TEXT,
    "node.watch": WATCH,
    "node.name": TEXT,
    "node.account": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "node.rules": Sample(
        (
            (
                '[{kind = "a", where = "label", key = "b", confidence = "certain"}]',
                '[{"kind": "a", "where": "label", "key": "b", "confidence": "certain"}]',
            ),
            ("[]", "[]"),
        ),
        ("1", "[1]", "[{}]", '[{kind = "a"}]', "[{color = 1}]"),
        ("x", "{}", "[1]", "["),
    ),
    "user.file": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "user.exec": Sample((('["a", "b c"]', "a 'b c'"),), ('"a"', "[1]"), ("a 'b",)),
    "user.http": Sample(
        (('"http://h/p?q=1"', "http://h/p?q=1"),),
        ('"h/p"', "1", '"https://user@h/p"', '"http://user:word@h/"', '"http://h/p#x"'),
        ("ftp://h", "http://u:p@h/"),
    ),
    "user.period_seconds": Sample((("0.1", "0.1"), ("5", "5")), ("0.01", "-1", '"1"'), ("x", "0")),
    "sockets.workload": Sample((('"/a"', "/a"), ('"/b"', "/b")), ('"a"', "1", '""'), ("a",)),
    "sockets.admin": Sample((('"/a"', "/a"), ('"/b"', "/b")), ('"a"', "1", '""'), ("a",)),
    "sockets.workload_mode": Sample(
        (('"0660"', "0660"), ('"0o600"', "600")), ("0o660", "660", '"999"', '"rw"'), ("888", "8")
    ),
    "sockets.admin_group": TEXT,
    "memory.budget": Sample(
        (('"25%"', "25%"), ('"64GiB"', "64GiB"), ("1048576", "1048576")),
        ('"0%"', '"101%"', '"a lot"', '"64gib"', "0", "-1", "0.5", "true"),
        ("0", "64 stone", "%"),
    ),
    "memory.slots": Sample((("1", "1"), ("16", "16")), ("0", "17", "1.0", "true", '"3"'), ("x",)),
    "memory.orphan_seconds": SECONDS,
    "memory.spill": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "policy.max_priority": Sample((("-5", "-5"), ("5", "5")), ("1.5", "true", "9999999"), ("x",)),
    "policy.allow_users": Sample(
        (('["ann"]', "ann"), ('["ann", "bob"]', "ann,bob")), ('"ann"', "[1]", '[""]'), ("a\0b",)
    ),
    "policy.max_bytes_per_user": Sample(
        (('"25%"', "25%"), ('"64GiB"', "64GiB")), ('"0%"', '"101%"', "0", "0.5"), ("0", "%")
    ),
    "policy.users": Sample(
        (
            ("{ann = {max_priority = 5}}", '{"ann": {"max_priority": 5}}'),
            ('{1002 = {max_bytes = "25%"}}', '{"1002": {"max_bytes": "25%"}}'),
            ("{}", "{}"),
        ),
        (
            "1",
            "[]",
            "{ann = 1}",
            "{ann = {colour = 1}}",
            "{ann = {max_bytes = 0}}",
            '{ann = {prefix = ""}}',
            '{ann = {prefix = "../bob"}}',
            '{ann = {prefix = "a/b/c"}}',
            '{ann = {prefix = "bob"}, bob = {}}',
            '{"" = {}}',
        ),
        ("x", "[1]", "{"),
    ),
    "policy.allow_namespaces": Sample((('["a", "b"]', "a,b"),), ('"a"', "[1]"), ("a\0b",)),
    "policy.namespaces": Sample(
        (
            ("{team-a = {max_priority = 5}}", '{"team-a": {"max_priority": 5}}'),
            ('{team-a = {prefix = "teams/a"}}', '{"team-a": {"prefix": "teams/a"}}'),
            ("{}", "{}"),
        ),
        (
            "1",
            "[]",
            "{team-a = 1}",
            '{team-a = {max_bytes = "25%"}}',
            '{team-a = {prefix = "team-b"}, team-b = {}}',
            '{team-a = {prefix = "teams/research"}, teams = {}}',
            '{teams = {}, team-a = {prefix = "teams/research"}}',
        ),
        ("x", "[1]", "{"),
    ),
    "policy.pods_dir": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "plan.commit_reserve_seconds": SECONDS,
    "plan.assumed_bytes_per_second": Sample((("1e9", "1e9"), ("5", "5")), ("0", "-1"), ("fast",)),
    "plan.window_seconds": SECONDS,
    "quiet.enabled": BOOLEAN,
    "quiet.bytes_per_second": Sample(
        (('"25%"', "25%"), ('"200MB"', "200MB"), ("1048576", "1048576")),
        ('"0%"', '"101%"', '"fast"', "0", "-1", "true"),
        ("0", "fast", "%"),
    ),
    "quiet.min_interval_seconds": SECONDS,
    "peer.listen": Sample(
        (('"0.0.0.0:9912"', "0.0.0.0:9912"), ('"[::1]:0"', "[::1]:0")),
        ('"9912"', '"localhost:1"', '"::1:80"', '"1.2.3.4:65536"', "9912"),
        ("host:1", "[::1]"),
    ),
    "peer.token_file": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "peer.budget": Sample((('"25%"', "25%"), ('"64GiB"', "64GiB")), ('"0%"', "0"), ("0", "%")),
    "peer.keep_seconds": ABOVE,
    "peer.connections": Sample((("1", "1"), ("64", "64")), ("0", "1025", '"3"'), ("x",)),
    "cordon.command": Sample(
        (('["a", "b c"]', "a 'b c'"), ('["a"]', "a")), ('"a"', "[1]", '[""]'), ("a 'b",)
    ),
    "cordon.undo_command": Sample((('["a"]', "a"),), ('"a"',), ("a 'b",)),
    "cordon.timeout_seconds": Sample((("3", "3"),), ("0", "-1"), ("x",)),
    "cordon.kubernetes": Sample(
        (('"report-only"', "report-only"), ('"off"', "off")), ('"yes"', "true"), ("maybe",)
    ),
    "cordon.kubernetes_timeout_seconds": ABOVE,
    "cordon.kubernetes_conditions": Sample((('["a", "b"]', "a,b"),), ('"a"', "[1]"), ("a\0b",)),
    "cordon.kubernetes_evict": BOOLEAN,
    "departure.webhook_url": Sample(
        (('"http://h/p?q=1"', "http://h/p?q=1"),), ('"h/p"', "1"), ("ftp://h",)
    ),
    "departure.rendezvous": Sample(
        (('["tcpstore://h:1/evac/r"]', "tcpstore://h:1/evac/r"),),
        ('["http://h/x"]', '"tcpstore://h:1/x"', '["tcpstore://h:1"]', '["tcpstore://h:0/x"]'),
        ("nonsense",),
    ),
    "departure.registered": BOOLEAN,
    "departure.timeout_seconds": Sample((("3", "3"),), ("0", "-1"), ("x",)),
    "departure.secret_file": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "etcd.endpoints": Sample(
        (('["https://h:1", "http://h/"]', "https://h:1,http://h/"),),
        ('["h:1"]', '"https://h:1"', '["https://h:1/x"]', '["https://me:word@h"]'),
        ("nonsense",),
    ),
    "etcd.ca_file": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "etcd.cert_file": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "etcd.key_file": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "etcd.user": TEXT,
    "etcd.password_file": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "http.enabled": BOOLEAN,
    "http.address": Sample(
        (('"127.0.0.1"', "127.0.0.1"), ('"::"', "::")), ('"localhost"', "1", '""'), ("a.b",)
    ),
    "http.port": Sample((("0", "0"), ("9911", "9911")), ("-1", "65536", '"1"'), ("x",)),
    "http.degraded_seconds": ABOVE,
    "state.dir": Sample((('"/a"', "/a"),), ('"a"', "1"), ("a",)),
    "state.node": TEXT,
    "log.format": Sample((('"json"', "json"),), ('"xml"', "1"), ("xml",)),
    "log.level": Sample((('"debug"', "debug"),), ('"loud"', "1"), ("loud",)),
}
BY_KEY = {one.key: one for one in SETTINGS}
settings = st.sampled_from(SETTINGS)


def value(config: Config, one: Setting) -> object:
    return getattr(getattr(config, one.section), one.name)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "evac.toml"


def test_every_setting_has_samples() -> None:
    assert set(SAMPLES) == set(BY_KEY)


def test_nothing_given_is_all_defaults() -> None:
    config = load(None, {}, {})

    assert config == Config()
    assert config.store.targets == ()
    assert config.memory.budget.resolve(1000) == 500
    assert config.sockets.workload_mode == 0o666
    assert config.sockets.workload == Path("/run/evac/evacd.sock")
    assert {row.origin for row in explain(config)} == {"default"}


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        load(None, {}, {}).store.targets = ()  # type: ignore[misc]  # the promise under test


@given(one=settings, data=st.data())
def test_a_value_means_the_same_in_all_three_places(
    one: Setting, data: st.DataObject, file: Path
) -> None:
    toml, text = data.draw(st.sampled_from(SAMPLES[one.key].good))
    file.write_text(f"[{one.section}]\n{one.name} = {toml}\n")

    in_file = load(file, {}, {})
    in_env = load(None, {one.env: text}, {})
    repeated = [part.strip() for part in text.split(",")]
    in_flag = load(None, {}, {one.key: repeated if one.kind.repeated else text})

    assert value(in_env, one) == value(in_file, one)
    assert value(in_flag, one) == value(in_file, one)
    assert in_file.origins == {one.key: f"{file}:2"}
    assert in_env.origins == {one.key: one.env}
    assert in_flag.origins == {one.key: one.flag}


@given(
    places=st.dictionaries(
        settings.map(lambda one: one.key), st.sets(st.sampled_from(["file", "env", "flag"]))
    ),
    data=st.data(),
)
def test_flag_beats_environment_beats_file_beats_default(
    places: dict[str, set[str]], data: st.DataObject, file: Path
) -> None:
    toml: list[str] = []
    environ: dict[str, str] = {}
    flags: dict[str, object] = {}
    for key, where in places.items():
        one = BY_KEY[key]
        good = st.sampled_from(SAMPLES[key].good)
        if "file" in where:
            toml.append(f"{key} = {data.draw(good)[0]}")
        if "env" in where:
            environ[one.env] = data.draw(good)[1]
        if "flag" in where:
            flags[key] = data.draw(good.filter(lambda pair: "," not in pair[1]))[1]
            if one.kind.repeated:
                flags[key] = [flags[key]]
    file.write_text("\n".join(toml))

    config = load(file, environ, flags)

    for one in SETTINGS:
        where = places.get(one.key, set())
        if "flag" in where:
            alone, origin = load(None, {}, {one.key: flags[one.key]}), one.flag
        elif "env" in where:
            alone, origin = load(None, {one.env: environ[one.env]}, {}), one.env
        elif "file" in where:
            alone, origin = load(file, {}, {}), config.origins[one.key]
            assert origin.startswith(f"{file}:")
        else:
            alone, origin = Config(), "default"
        assert value(config, one) == value(alone, one)
        assert config.origins.get(one.key, "default") == origin


@given(bad=settings, others=st.lists(settings, unique_by=lambda one: one.key), data=st.data())
def test_a_wrong_value_is_refused_with_its_line(
    bad: Setting, others: list[Setting], data: st.DataObject, file: Path
) -> None:
    wrong = data.draw(st.sampled_from(SAMPLES[bad.key].wrong))
    text: list[str] = []
    line = 0
    noise = st.sampled_from(["", "# a = 1", "\n\n# [store]"])
    for one in data.draw(st.permutations([bad, *[o for o in others if o.key != bad.key]])):
        text.append(data.draw(noise))
        good = data.draw(st.sampled_from(SAMPLES[one.key].good))[0]
        if one is bad:
            line = "\n".join(text).count("\n") + 2
        text.append(f"{one.key} = {wrong if one is bad else good}")
    file.write_text("\n".join(text))

    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})

    assert caught.value.where == f"{file}:{line}"
    assert caught.value.key == bad.key
    assert caught.value.expected.startswith(bad.kind.expected)


@pytest.mark.parametrize(
    ("key", "text"), [(key, text) for key, one in SAMPLES.items() for text in one.wrong_text]
)
def test_wrong_text_is_refused_with_the_name_of_its_variable_or_flag(key: str, text: str) -> None:
    one = BY_KEY[key]

    with pytest.raises(ConfigError) as in_env:
        load(None, {one.env: text}, {})
    with pytest.raises(ConfigError) as in_flag:
        load(None, {}, {key: [text] if one.kind.repeated and key != "store.targets" else text})

    assert (in_env.value.where, in_env.value.key) == (one.env, key)
    assert (in_flag.value.where, in_flag.value.key) == (one.flag, key)


@pytest.mark.parametrize(
    ("text", "line", "key", "hint"),
    [
        ("\n[store]\ntarget = []\n", 3, "store.target", 'did you mean "targets"?'),
        ("[stroe]\n", 1, "stroe", 'did you mean "store"?'),
        ("# x\nzebra = 1\n", 2, "zebra", "a section: store, notice"),
        ("a = " + "1" * 5000, 1, "syntax", "TOML ("),
        ("store = 1\n", 1, "store", "a table: [store]"),
        ("[[store]]\n", 1, "store", "a table: [store]"),
        ("[store]\ntargets = [\n", 2, "syntax", "TOML ("),
        ("[store]\ntargets = file\n[log]\n", 2, "syntax", "TOML ("),
        ("[log]\nlevel = 'info'\nlevel = 'info'\n", 3, "syntax", "TOML ("),
    ],
)
def test_an_unknown_or_malformed_file_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, key: str, hint: str
) -> None:
    file = tmp_path / "evac.toml"
    file.write_text(text)

    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})

    assert (caught.value.where, caught.value.key) == (f"{file}:{line}", key)
    assert hint in caught.value.expected


RULES = """\
[node]
watch = "on"

[[node.rules]]
kind = "site/reclaim"
where = "label"
key = "site/going"
confidence = "certain"
window_seconds = 60

[[node.rules]]
kind = "site/maintain"
where = "{where}"
key = "site/maintain"

confidence = "{confidence}"
"""


def test_rules_of_a_file_are_read_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "evac.toml"
    file.write_text(RULES.format(where="taint", confidence="planned"))

    first, second = load(file, {}, {}).node.rules

    assert (first.kind, first.window_seconds, first.value) == ("site/reclaim", 60.0, "*")
    assert (second.where, second.confidence) == ("taint", "planned")


@pytest.mark.parametrize(
    ("where", "confidence", "line", "hint"),
    [
        ("taint", "sure", 16, "a rule's confidence is one of"),
        ("mark", "planned", 13, "a rule's where is one of"),
        ("label", "", 16, "a rule's confidence is one of"),
    ],
)
def test_a_wrong_rule_is_refused_with_the_line_of_what_is_wrong(
    tmp_path: Path, where: str, confidence: str, line: int, hint: str
) -> None:
    file = tmp_path / "evac.toml"
    file.write_text(RULES.format(where=where, confidence=confidence))

    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})

    assert (caught.value.where, caught.value.key) == (f"{file}:{line}", "node.rules")
    assert hint in caught.value.expected


def test_a_rule_that_lacks_something_is_refused_where_it_begins(tmp_path: Path) -> None:
    file = tmp_path / "evac.toml"
    file.write_text('[[node.rules]]\nkind = "a"\n\n[[node.rules]]\nwhere = "label"\n')

    with pytest.raises(ConfigError, match=r"evac\.toml:1: .*a rule has its where"):
        load(file, {}, {})


def test_the_words_of_the_file_are_the_words_of_the_sources() -> None:
    assert set(POLICY_WORDS) == {policy.value for policy in Policy}
    assert set(WHERE_WORDS) == {where.value for where in Where}
    assert set(CONFIDENCE_WORDS) == {confidence.word for confidence in Confidence}


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=reason) as caught:
            load(path, {}, {})
        assert caught.value.where == str(path)
    (tmp_path / "latin.toml").write_bytes(b"# a\n# \xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.toml:2: file: expected UTF-8"):
        load(tmp_path / "latin.toml", {}, {})


def test_variables_of_workloads_and_empty_ones_are_no_errors() -> None:
    environ = {"EVAC_JOB": "x", "EVAC_PRIORITY": "-", "EVAC_STORE_TARGET": "1", "EVAC_STORE": ""}

    assert load(None, environ, {}).origins == {}


def test_an_unknown_flag_key_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ConfigError, match=r"did you mean \"store.targets\""):
        load(None, {}, {"store.target": "x"})


def test_secrets_are_neither_explained_nor_repeated_in_errors() -> None:
    secret = "hunter2"
    config = load(
        None,
        {
            "EVAC_STORE": f"s3://key:{secret}@bucket/p?token={secret}",
            "EVAC_DEPARTURE_WEBHOOK_URL": f"https://me:{secret}@h:8/p?token={secret}#{secret}",
        },
        {},
    )

    rows = {row.key: row for row in explain(config)}

    assert secret not in str(rows)
    assert rows["departure.webhook_url"].value == "https://h:8/p?..."
    assert rows["sockets.workload_mode"].value == "0666"
    for name in ("EVAC_STORE", "EVAC_DEPARTURE_WEBHOOK_URL"):
        with pytest.raises(ConfigError) as caught:
            load(None, {name: f"//me:{secret}@h"}, {})
        assert secret not in str(caught.value)


@given(available=st.integers(0, 2**50), percent=st.integers(1, 100))
def test_a_share_never_exceeds_what_is_available(available: int, percent: int) -> None:
    budget = Budget.parse(f"{percent}%")

    assert budget.resolve(available) == available * percent // 100
    assert str(budget) == f"{percent}%"


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1", 1), ("2KiB", 2048), ("2 KB", 2000), ("1.5GiB", 3 * 2**29), ("64GiB", 2**36)],
)
def test_a_size_is_what_it_says(text: str, nbytes: int) -> None:
    assert Budget.parse(text).resolve(0) == nbytes


@pytest.mark.parametrize("prefix", ["ann", "team/ann", "team"])
def test_a_namespace_has_no_prefix_that_is_a_user_s(tmp_path: Path, prefix: str) -> None:
    file = tmp_path / "evac.toml"
    file.write_text(
        f'[policy.users.ann]\nprefix = "{prefix}"\n[policy.namespaces.a]\nprefix = "{prefix}"\n'
    )
    with pytest.raises(ConfigError, match=f"{prefix} is ann's"):
        load(file, {}, {})
