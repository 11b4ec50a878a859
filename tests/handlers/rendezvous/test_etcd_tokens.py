"""What an etcd says of who asks, and what is made of it: whom a person has to help, and who asks anew."""

import json

import pytest

from evac.rendezvous.etcd_calls import Answer, EtcdCalls
from evac.rendezvous.etcd_login import Login, Ticket
from evac.rendezvous.keys import Denied, Unreachable

FORBIDDEN = "etcdserver: permission denied"
# As 3.4 puts it where a token is not known; an older revision is told by the applier.
UNKNOWN = ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old")


def calls(token: str | None) -> EtcdCalls:
    return EtcdCalls("h:1", "evac/run", Login("me", "secret", Ticket(token)))


def told(reason: str) -> Answer:
    return Answer(403, json.dumps({"error": reason, "message": reason}).encode())


def given(token: str) -> Answer:
    return Answer(200, json.dumps({"token": token}).encode())


NO_USERS = told("etcdserver: authentication is not enabled")
FOUND = Answer(200, json.dumps({"responses": [{"response_range": {}}]}).encode())


def ask(token: str | None, *answers: Answer) -> list[tuple[str, str]]:
    """What it sends, and with which token, until *answers* are enough."""
    steps = calls(token).get(["a"])
    request, sent = next(steps), list[tuple[str, str]]()
    for answer in answers:
        sent.append((request.path.rpartition("/")[2], request.token))
        try:
            request = steps.send(answer)
        except StopIteration:
            return sent
    raise AssertionError(f"asks on: {request}")


@pytest.mark.parametrize("token", ["", "old"])
@pytest.mark.parametrize("reason", UNKNOWN)
def test_whose_token_is_not_known_asks_for_another(token: str, reason: str) -> None:
    again = [("txn", token), ("authenticate", ""), ("txn", "new")]

    assert ask(token, told(reason), given("new"), FOUND) == again


def test_who_came_as_nobody_says_who_it_is_before_it_is_turned_away() -> None:
    again = [("txn", ""), ("authenticate", ""), ("txn", "new")]

    assert ask("", told(FORBIDDEN), given("new"), FOUND) == again
    with pytest.raises(Denied, match="gives 'me' no permission"):
        ask("", told(FORBIDDEN), given("new"), told(FORBIDDEN))


def test_who_is_known_and_may_not_is_turned_away_at_once() -> None:
    with pytest.raises(Denied, match="gives 'me' no permission"):
        ask("good", told(FORBIDDEN))


@pytest.mark.parametrize("last", [FORBIDDEN, *UNKNOWN])
def test_users_that_are_changed_as_one_asks_turn_nobody_away(last: str) -> None:
    with pytest.raises(Unreachable) as error:
        ask("old", told(UNKNOWN[0]), NO_USERS, told(last))

    assert not isinstance(error.value, Denied)


@pytest.mark.parametrize("reason", [FORBIDDEN, *UNKNOWN, "etcdserver: mvcc: compacted", "t0ken!"])
@pytest.mark.parametrize("token", ["", "t0ken!"])
def test_a_watch_that_ends_turns_nobody_away_and_is_asked_for_anew(token: str, reason: str) -> None:
    ticket = Ticket(token)
    keys = EtcdCalls("h:1", "evac/run", Login("me", "secret", ticket))
    steps = keys.watch("a")
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(Answer(200, b'{"header": {"revision": "7"}}'))

    line = {"result": {"canceled": True, "cancel_reason": reason}}
    with pytest.raises(Unreachable) as error:
        keys.came(json.dumps(line).encode())

    assert not isinstance(error.value, Denied)
    assert not token or token not in str(error.value)
    stale = reason in (FORBIDDEN, *UNKNOWN)
    assert ticket.token == (None if stale else token)


def test_a_watch_that_ends_forgets_no_token_that_was_given_since() -> None:
    ticket = Ticket("old")
    keys = EtcdCalls("h:1", "evac/run", Login("me", "secret", ticket))
    steps = keys.watch("a")
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(Answer(200, b'{"header": {"revision": "7"}}'))
    ticket.token = "new"

    line = {"result": {"canceled": True, "cancel_reason": UNKNOWN[0]}}
    with pytest.raises(Unreachable):
        keys.came(json.dumps(line).encode())

    assert ticket.token == "new"
