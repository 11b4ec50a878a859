import json

from hypothesis import given
from hypothesis import strategies as st

from evac.rendezvous.events import EVENTS, Depart, Join, decode, encode
from evac.rendezvous.snapshot import load

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_round_trip() -> None:
    event = Depart("leaving", "n1", "b1", 7, "order", 30.5, 12, 3, "file:///x", "why")

    assert decode(encode(event, mark="me:1")) == event
    assert encode(event, mark="me:1") != encode(event, mark="me:2")


@given(st.binary(max_size=64))
def test_bytes_that_say_nothing_are_nothing(entry: bytes) -> None:
    assert decode(entry) is None or entry.startswith(b"{")
    load(entry)


@given(
    st.sampled_from(sorted(EVENTS)), st.dictionaries(st.text(max_size=8), json_values, max_size=4)
)
def test_no_entry_of_a_stranger_raises(word: str, rest: dict[str, object]) -> None:
    entry = json.dumps({**rest, "do": word}).encode()

    assert decode(entry) is None or isinstance(decode(entry), EVENTS[word])


def test_a_field_of_another_type_or_size_is_refused() -> None:
    good = encode(Join("a", "n", "b", 1, 2))

    assert decode(good) is not None
    assert decode(good.replace(b'"minimum":1', b'"minimum":"1"')) is None
    assert decode(good.replace(b'"minimum":1', b'"minimum":true')) is None
    assert decode(good.replace(b'"agent":"a"', b'"agent":"' + b"a" * 2000 + b'"')) is None
