"""Connections to a machine that may fall silent: which are bounded, and which are nobody's business."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from evac.rendezvous.address import Address
from evac.rendezvous.silence import bound_all
from evac.rendezvous.torch_keys import connect
from tests.open_files import open_files
from tests.services.process import HOST


@pytest.fixture
def line() -> Iterator[socket.socket]:
    with (
        closing(socket.create_server((HOST, 0))) as server,
        closing(socket.create_connection(server.getsockname())) as made,
    ):
        yield made


def limit_ms(line: socket.socket) -> int:
    return line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_a_connection_is_found_by_what_it_leads_to(line: socket.socket) -> None:
    port = line.getpeername()[1]

    assert bound_all("localhost", port, 7.0) == 1

    assert limit_ms(line) == 7000
    assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_other_connections_are_left_alone_and_no_file_stays_open(line: socket.socket) -> None:
    before = open_files()

    assert bound_all("127.0.0.2", line.getpeername()[1], 7.0) == 0
    assert bound_all(HOST, line.getsockname()[1], 7.0) == 0
    assert bound_all("no-such-host.invalid", line.getpeername()[1], 7.0) == 0

    assert limit_ms(line) == 0
    assert open_files() <= before


def test_none_stops_to_block(line: socket.socket) -> None:
    """A copy shares that with its original, and Python's copies take the default's."""
    socket.setdefaulttimeout(5.0)
    try:
        bound_all(HOST, line.getpeername()[1], 7.0)
    finally:
        socket.setdefaulttimeout(None)

    assert os.get_blocking(line.fileno())


def test_torch_s_own_are_found(tcpstore: Address) -> None:
    before = bound_all(tcpstore.host, tcpstore.port, 7.0)

    store = connect(tcpstore.host, tcpstore.port, seconds=5.0)

    assert bound_all(tcpstore.host, tcpstore.port, 7.0) == before + 1
    del store
