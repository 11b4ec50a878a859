"""Adoption from the client's side; what the daemon lends is tested with a real one."""

import os
from collections.abc import Callable

import pytest

import evac
from tests.handlers.client.honest import Daemon


def test_without_a_daemon_nothing_is_adopted_and_the_reason_told(
    connect: Callable[..., evac.Client],
) -> None:
    with pytest.raises(evac.NotConnected):
        connect().adopt(0.1)


def test_a_refusal_is_told(daemon: Daemon, client: evac.Client) -> None:
    with pytest.raises(evac.Refused, match="nothing is lent here"):
        client.adopt(10.0)


def test_a_forked_child_adopts_nothing(daemon: Daemon, client: evac.Client) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            client.adopt(10.0)
        except evac.NotConnected:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
