"""PROTOCOL.md says what wire and segment.py do, or this fails."""

import json
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

import evac
from evac import segment, wire
from evac.segment import Header, SlotState
from evac.wire import MESSAGES

PAGE = (Path(evac.__file__).parent / "PROTOCOL.md").read_text()
SECTIONS = dict(re.findall(r"^### `([a-z-]+)`\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL))


def described(item: "Field[Any]") -> tuple[str, str, str]:
    """The cells of a field's row: name, type and range, default."""
    rule = item.metadata
    match rule["kind"].__name__:
        case "int":
            what = f"integer {rule['low']}..{rule['high']}"
        case "float":
            what = f"number {rule['low']:g}..{rule['high']:g}"
        case "bool":
            what = "boolean"
        case "tuple":
            what = f"list of <= 64 strings, each <= {rule['limit']}"
        case _:
            what = f"string <= {rule['limit']}"
            if rule["pattern"] is not None:
                what += f", `{rule['pattern'].pattern}`"
    default = "required" if item.default is MISSING else f"`{json.dumps(item.default)}`"
    return f"`{item.name}`", what, default


def rows(section: str) -> list[list[str]]:
    """The rows of a table below its head, with bars inside of cells given back."""
    found = [line for line in section.splitlines() if line.startswith("|")][2:]
    split = [re.split(r"(?<!\\)\|", line)[1:-1] for line in found]
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in split]


def test_every_message_has_its_section() -> None:
    assert list(SECTIONS) == list(MESSAGES)


@pytest.mark.parametrize("word", MESSAGES)
def test_every_field_is_told_with_its_range_and_default(word: str) -> None:
    told = [tuple(row[:3]) for row in rows(SECTIONS[word])]
    assert told == [described(item) for item in fields(MESSAGES[word])]
    assert all(len(row) == 4 and row[3] for row in rows(SECTIONS[word]))


@pytest.mark.parametrize("word", MESSAGES)
def test_every_message_tells_who_sends_it(word: str) -> None:
    assert re.search(r"^From: (workload|admin|daemon)", SECTIONS[word], re.MULTILINE)


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"version {wire.PROTOCOL}\n" in PAGE
    assert f"at most {wire.MAX_PACKET} bytes" in PAGE
    assert f"{segment.HEADER_BYTES} bytes:" in PAGE
    assert f"header page ({segment.PAGE} bytes)" in PAGE


def test_the_example_packet_is_one() -> None:
    example = re.search(r"```json\n(.*?)\n```", PAGE)
    assert example is not None
    packet = wire.decode(example[1].encode())
    assert packet == wire.Packet(wire.Hello(version=wire.PROTOCOL, client="example 0.1"), id=1)
    assert wire.encode(packet.message, id=1).decode() == example[1]


def test_the_hex_dump_is_the_header_that_it_says() -> None:
    dump = re.search(r"```hexdump\n(.*?)```", PAGE, re.DOTALL)
    assert dump is not None
    told = b"".join(bytes.fromhex(line[6:]) for line in dump[1].splitlines())
    header = Header(
        state=SlotState.COMPLETE,
        incarnation=2,
        step=1500,
        body_nbytes=4 * 2**20,
        descriptor_offset=4198400,
        descriptor_nbytes=311,
        metadata_offset=4202496,
        metadata_nbytes=2048,
    )
    assert told == header.pack()


def test_the_table_of_the_header_finds_every_value_in_the_dump() -> None:
    section = PAGE[PAGE.index("| offset | bytes | field |") :].split("\n\n")[0]
    table = {row[2].strip("`"): (int(row[0]), int(row[1])) for row in rows(section)}
    header = Header(SlotState.WRITING, 11, 12, 13, 4096, 14, 8192, 15)
    packed = header.pack()

    def at(name: str) -> int:
        offset, nbytes = table[name]
        return int.from_bytes(packed[offset : offset + nbytes], "little")

    assert {item.name: at(item.name) for item in fields(Header)} == {
        item.name: int(getattr(header, item.name)) for item in fields(Header)
    }
    assert packed[:8].decode() in section
    assert at("version") == segment.VERSION
    assert sum(nbytes for _, nbytes in table.values()) == segment.HEADER_BYTES == len(packed)
