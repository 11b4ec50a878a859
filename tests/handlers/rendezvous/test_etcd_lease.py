"""A job whose agents are all gone leaves nothing in etcd; one that lives keeps all that it has."""

import base64
import json
from contextlib import closing
from threading import Event, Thread
from typing import Any

import pytest

from evac.rendezvous import log
from evac.rendezvous.address import Address, prefix_of
from evac.rendezvous.etcd_calls import Answer, EtcdCalls, Request, Steps, T
from evac.rendezvous.etcd_keys import EtcdKeys
from evac.rendezvous.etcd_login import Login
from evac.rendezvous.keys import Denied, Unreachable
from tests.handlers.rendezvous.nodes import local, until

# Less etcd does not grant.
SHORTEST_SECONDS = 2.0


def job(in_etcd: Address, run: str) -> Address:
    return local(in_etcd.port, "etcd", prefix_of(run))


def test_the_keys_of_a_job_that_died_go_by_themselves(in_etcd: Address) -> None:
    """... and those of one that lives are good for as long as at first, each time that it says so."""
    names = [log.SNAPSHOT, log.entry(0), log.beat("a")]
    lives = EtcdKeys(job(in_etcd, "lives"), keep_seconds=600.0)
    with closing(lives), closing(EtcdKeys(job(in_etcd, "died"))) as looks:
        died = EtcdKeys(job(in_etcd, "died"), keep_seconds=SHORTEST_SECONDS)
        for keys in (lives, died):
            assert keys.replace(names[0], b"", b"1")
            assert keys.create(names[1], b"1") == b"1"
            keys.put(names[2], b"1")
        died.close()

        until("they are gone", lambda: looks.get([*names, "lease"]) == [None] * 4)
        until("time passes", lambda: seconds_left(lives) < 599)
        low = seconds_left(lives)

        def longer() -> bool:
            lives.keep()
            return seconds_left(lives) > low

        until("it is kept", longer)
        assert lives.get(names) == [b"1"] * 3


def test_what_is_written_once_the_lease_is_over_gets_another(in_etcd: Address) -> None:
    """As by a job that could not reach etcd for a day."""
    with closing(EtcdKeys(in_etcd)) as keys:
        keys.put("a", b"1")
        before = keys.get(["lease"])
        revoke(keys)
        assert keys.get(["a", "lease"]) == [None, None]

        keys.keep()
        keys.put("a", b"2")

        assert keys.get(["a"]) == [b"2"]
        assert keys.get(["lease"]) not in ([None], before)
        # Without word of it, too.
        revoke(keys)
        assert keys.create("a", b"3") == b"3"


def test_a_key_of_a_lease_that_names_none_is_made_good(in_etcd: Address) -> None:
    for nonsense in (b"", b"-1", b"0", b"nonsense", b"123", b"9" * 400):
        with closing(EtcdKeys(in_etcd)) as other:
            other.put("lease", nonsense)
        with closing(EtcdKeys(in_etcd)) as keys:
            keys.put("a", b"1")
            keys.keep()
            assert int((keys.get(["lease"])[0] or b"").decode()) > 123


def test_all_hang_on_one_lease_whoever_was_first(in_etcd: Address) -> None:
    leases: list[bytes | None] = []
    begin = Event()

    def act(number: int) -> None:
        with closing(EtcdKeys(in_etcd)) as keys:
            begin.wait()
            keys.put(f"k{number}", b"1")
            revoke(keys) if number == 7 else leases.append(keys.get(["lease"])[0])

    threads = [Thread(target=act, args=(number,)) for number in range(7)]
    for thread in threads:
        thread.start()
    begin.set()
    for thread in threads:
        thread.join()
    act(7)

    assert len(set(leases)) == 1
    with closing(EtcdKeys(in_etcd)) as keys:
        assert keys.get([f"k{number}" for number in range(8)]) == [None] * 8


def test_all_keys_of_a_job_are_deleted_at_once_and_nobody_elses(in_etcd: Address) -> None:
    """Also not those of a job whose name begins with all of its own."""
    others = [EtcdKeys(job(in_etcd, run)) for run in ("ru", "run0", "run/", "run/log", "other")]
    with closing(EtcdKeys(job(in_etcd, "run"))) as keys:
        for one in (keys, *others):
            one.put(log.SNAPSHOT, b"1")
            one.put("log/stray", b"1")
        log.erase(keys)

        assert keys.get([log.SNAPSHOT, "log/stray", "lease"]) == [None] * 3
        assert [one.get([log.SNAPSHOT, "log/stray"]) for one in others] == [[b"1", b"1"]] * 5
    for one in others:
        one.close()


def revoke(keys: EtcdKeys) -> None:
    """As an end of its time."""
    ask_of_lease(keys, "/v3/lease/revoke")


def seconds_left(keys: EtcdKeys) -> int:
    """Of the lease."""
    return int(ask_of_lease(keys, "/v3/lease/timetolive")["TTL"])


def ask_of_lease(keys: EtcdKeys, path: str) -> dict[str, Any]:
    (found,) = keys.get(["lease"])
    assert found is not None
    body = json.dumps({"ID": found.decode()}).encode()
    answer = keys._send(Request(path, body))  # pyright: ignore[reportPrivateUsage]
    said: dict[str, Any] = json.loads(answer.body)
    return said


# --- without an etcd ------------------------------------------------------------------------


def drive(steps: Steps[T], *answers: object) -> tuple[list[Request], T]:
    """Answer one after the other, and see that this is enough."""
    asked = [next(steps)]
    for answer in answers:
        try:
            asked.append(steps.send(Answer(200, json.dumps(answer).encode())))
        except StopIteration as done:
            return asked, done.value
    raise AssertionError(f"asks on: {asked}")


def held(value: bytes) -> object:
    value = base64.b64encode(value)
    return {"responses": [{"response_range": {"kvs": [{"value": value.decode()}]}}]}


NOTHING: object = {"responses": [{"response_range": {}}]}


def test_whose_lease_comes_too_late_takes_the_other_and_gives_its_own_back() -> None:
    calls = EtcdCalls("h:1", "evac/run", Login())

    late = {"succeeded": False}
    asked, _ = drive(
        calls.put("a", b"1"), NOTHING, {"ID": "7"}, late, {}, held(b"8"), {"succeeded": True}
    )

    assert [one.path for one in asked][1:4] == ["/v3/lease/grant", "/v3/kv/txn", "/v3/lease/revoke"]
    assert json.loads(asked[3].body) == {"ID": "7"}
    assert json.loads(asked[-1].body)["success"][0]["request_put"]["lease"] == "8"


def test_whose_lease_comes_too_late_for_a_job_that_ends_writes_nothing() -> None:
    """With no lease it would stay for ever."""
    calls = EtcdCalls("h:1", "evac/run", Login())

    with pytest.raises(Unreachable, match="are being deleted"):
        drive(calls.put("a", b"1"), NOTHING, {"ID": "7"}, {"succeeded": False}, {}, NOTHING)


def test_who_may_only_read_gives_the_lease_back() -> None:
    steps = EtcdCalls("h:1", "evac/run", Login()).put("a", b"1")
    next(steps)
    for answer in (NOTHING, {"ID": "7"}):
        steps.send(Answer(200, json.dumps(answer).encode()))

    back = steps.send(Answer(403, b'{"message": "etcdserver: permission denied"}'))

    assert (back.path, json.loads(back.body)) == ("/v3/lease/revoke", {"ID": "7"})
    with pytest.raises(Denied):
        steps.send(Answer(200, b"{}"))


def test_who_has_written_nothing_keeps_nothing_alive() -> None:
    with pytest.raises(StopIteration):
        next(EtcdCalls("h:1", "evac/run", Login()).keep())


@pytest.mark.parametrize("answer", [{}, {"ID": "x"}, {"ID": None}])
def test_a_lease_that_makes_no_sense_is_no_etcd(answer: object) -> None:
    with pytest.raises(Unreachable):
        drive(EtcdCalls("h:1", "evac/run", Login()).put("a", b"1"), NOTHING, answer)
