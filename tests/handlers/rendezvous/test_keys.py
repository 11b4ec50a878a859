"""What every kind of store promises to the nodes that meet in it (`evac.rendezvous.keys.Keys`)."""

from collections.abc import Iterator
from contextlib import closing
from threading import Event, Thread

import pytest

from evac.rendezvous.address import Address
from evac.rendezvous.keys import Keys
from tests.handlers.rendezvous.nodes import open_keys


@pytest.fixture
def keys(store: Address) -> Iterator[Keys]:
    with closing(open_keys(store)) as made:
        yield made


def test_the_first_to_create_a_key_has_it(keys: Keys) -> None:
    assert keys.create("a", b"1") == b"1"
    assert keys.create("a", b"2") == b"1"
    assert keys.get(["a"]) == [b"1"]


def test_to_ask_for_a_key_does_not_make_it(keys: Keys) -> None:
    keys.put("b", b"2")

    assert keys.get(["a", "b", "c"]) == [None, b"2", None]

    assert keys.create("a", b"1") == b"1"


def test_what_is_deleted_while_it_is_read_is_not_there(keys: Keys, store: Address) -> None:
    """... and is not waited for."""
    stop = Event()

    def change() -> None:
        with closing(open_keys(store)) as other:
            while not stop.is_set():
                other.put("a", b"1")
                other.delete("a")

    changing = Thread(target=change)
    changing.start()
    try:
        found = {keys.get(["a"])[0] for _ in range(500)}
    finally:
        stop.set()
        changing.join()

    assert found <= {b"1", None}
