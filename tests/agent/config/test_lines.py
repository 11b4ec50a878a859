"""Lines of keys, however they are spelled."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.config.lines import lines, syntax_line

TRICKY = '''\
# [store]
top.dotted = 1

[store]  # targets = 1
"quoted key" = """
[log]
level = "x"
"""
targets = [
  "a",  # ]

  "[policy]",
]
inline = { a = 1, b = { c = 2 } }
[ "other table" . deep ]
'single' = [{ x = 1 }]
[[many]]
one = 1
[[many]]
one = 2
'''


def test_strings_arrays_quotes_and_inline_tables_do_not_mislead() -> None:
    assert lines(TRICKY) == {
        ("top",): 2,
        ("top", "dotted"): 2,
        ("store",): 4,
        ("store", "quoted key"): 5,
        ("store", "targets"): 9,
        ("store", "inline"): 14,
        ("store", "inline", "a"): 14,
        ("store", "inline", "b"): 14,
        ("store", "inline", "b", "c"): 14,
        ("other table",): 15,
        ("other table", "deep"): 15,
        ("other table", "deep", "single"): 16,
        ("other table", "deep", "single", "x"): 16,
        ("many",): 17,
        ("many", "one"): 18,
        ("many", "0"): 17,
        ("many", "0", "one"): 18,
        ("many", "1"): 19,
        ("many", "1", "one"): 20,
    }


def test_line_ends_of_other_systems_count_once() -> None:
    assert lines("[a]\r\n\r\nb = 1\r\n") == {("a",): 1, ("a", "b"): 3}


@given(st.text(alphabet="[]={}\"'#ab1.,\n\\ ", max_size=60))
def test_every_key_of_valid_toml_has_a_line(text: str) -> None:
    size = text.count("\n") + 1
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line, document = syntax_line(error, text), {}
        text = ""
    else:
        line = 1
    assert 1 <= line <= size
    found = lines(text)

    for key, value in document.items():
        assert (key,) in found
        for inner in value if isinstance(value, dict) else ():
            assert (key, inner) in found


@pytest.mark.parametrize(("text", "line"), [("a = 1\nb =", 2), ("a = 1\nb = [\n1,\n", 3)])
def test_a_text_that_ends_too_early_is_wrong_at_its_end(text: str, line: int) -> None:
    with pytest.raises(tomllib.TOMLDecodeError) as caught:
        tomllib.loads(text)

    assert syntax_line(caught.value, text) == line
