"""A job's keys in etcd: requests to the JSON gateway of its v3 API, and what its answers mean. Pure.

A method here is a generator: it yields requests, is sent what was answered, and returns what was found. So
the agents' client, which blocks (`etcd_keys`), and the daemon's (`evacd.rendezvous.etcd`) are thin shells.

Users: a token is asked for with name and password, and anew where etcd does not know it any more: it expires
after some minutes, with a restart, and where users are changed. Who comes without one, as while etcd knows no
users, is by 3.4 taken for whom the gateway's own certificate names: "permission denied" may mean that, too, and
at a watch that its token is not known any more. No client certificate makes a user here: the gateway passes none
on. All keys of a job hang on one lease, whose number is a key, too; whoever takes part keeps it alive. So a job
whose agents are all gone leaves nothing behind, after `KEEP_SECONDS`. Turned down: a lease for each agent, which
would leave the log.

Sources: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/, rpc.proto and api/v3rpc/rpctypes/error.go, read
2026-11; bytes travel as base64, 64-bit numbers as text.
"""

import base64
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from evac.rendezvous.etcd_login import Login
from evac.rendezvous.keys import Denied, Unreachable

T = TypeVar("T")

KEEP_SECONDS = 86400.0
_TXN, _RANGE, _AUTHENTICATE = "/v3/kv/txn", "/v3/kv/range", "/v3/auth/authenticate"
_REVOKE = "/v3/lease/revoke"
_LEASE = "lease"
# etcd takes at most 128 operations in one transaction.
_BATCH = 100
# A token that etcd does not know (any more), or that belongs to how users were before.
_STALE = ("invalid auth token", "revision of auth store is old", "user name is empty")
_FORBIDDEN = "permission denied"
_WRONG = "authentication failed"
_NO_USERS, _NO_LEASE = "authentication is not enabled", "requested lease not found"
# What a proxy that answers in etcd's place makes of whoever reads it.
_SENSELESS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Request:
    """A POST; neither its body nor its token is for anybody's log."""

    path: str
    body: bytes = field(repr=False)
    token: str = field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Of the request."""
        headers = {"Content-Type": "application/json"}
        return {**headers, "Authorization": self.token} if self.token else headers


@dataclass(frozen=True)
class Answer:
    """What came back, all of it."""

    status: int
    body: bytes


Steps: TypeAlias = Generator[Request, Answer, T]


class EtcdCalls:
    """What can be done with the keys of one job, over one connection.

    Each raises `Unreachable`, or `Denied` where another try cannot help.

    Args:
        renewed: The same user with the password of now, before each login; *login* without it.
    """

    def __init__(
        self,
        where: str,
        prefix: str,
        login: Login,
        *,
        renewed: Callable[[], Login] | None = None,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._where, self._prefix, self._login = where, prefix, login
        self._renewed = renewed
        self._keep_seconds = keep_seconds
        # That all is written with; 0 where it is not known yet.
        self._lease = 0
        # The token of the last watch.
        self._watches_as = ""

    # --- keys --------------------------------------------------------------------------------

    def create(self, key: str, value: bytes) -> Steps[bytes]:
        """See `Keys.create`."""
        answer = yield from self._write(lambda lease: self._unless_there(key, value, lease))
        with _Sense(self._where):
            return value if answer.get("succeeded") else _held(answer["responses"][0]) or b""

    def replace(self, key: str, before: bytes, value: bytes) -> Steps[bool]:
        """See `Keys.replace`."""

        def asked(lease: int) -> dict[str, Any]:
            if not before:
                return self._unless_there(key, value, lease)
            holds = {"target": "VALUE", "key": self._name(key), "value": _text(before)}
            return {"compare": [holds], "success": [self._put(key, value, lease)]}

        answer = yield from self._write(asked)
        return bool(answer.get("succeeded"))

    def put(self, key: str, value: bytes) -> Steps[None]:
        """See `Keys.put`."""
        yield from self._write(lambda lease: {"success": [self._put(key, value, lease)]})

    def get(self, keys: Sequence[str]) -> Steps[list[bytes | None]]:
        """See `Keys.get`."""
        found: list[bytes | None] = []
        for start in range(0, len(keys), _BATCH):
            asked = [self._range(key) for key in keys[start : start + _BATCH]]
            answer = yield from self._ask(_TXN, {"success": asked})
            with _Sense(self._where):
                responses = answer["responses"]
                if len(responses) != len(asked):
                    raise ValueError(f"{len(responses)} answers to {len(asked)} questions")
                found += map(_held, responses)
        return found

    def delete(self, keys: Sequence[str]) -> Steps[None]:
        """See `Keys.delete`."""
        for start in range(0, len(keys), _BATCH):
            some = keys[start : start + _BATCH]
            asked = [{"request_delete_range": {"key": self._name(key)}} for key in some]
            yield from self._ask(_TXN, {"success": asked})

    def clear(self) -> Steps[None]:
        """See `Keys.clear`."""
        first = f"{self._prefix}/".encode()
        behind = first[:-1] + bytes([first[-1] + 1])
        asked = {"key": _text(first), "range_end": _text(behind)}
        yield from self._ask("/v3/kv/deleterange", asked)
        self._lease = 0

    def keep(self) -> Steps[None]:
        """See `Keys.keep`."""
        if not self._lease:
            return
        answer = yield from self._ask("/v3/lease/keepalive", {"ID": str(self._lease)})
        with _Sense(self._where):
            if int(answer["result"].get("TTL", 0)) <= 0:
                self._lease = 0  # it is over, and all keys are gone

    def watch(self, key: str) -> Steps[Request | None]:
        """What is answered, line by line (`came`), once the key is there; None where it is already."""
        answer = yield from self._ask(_RANGE, {"key": self._name(key)})
        if answer.get("kvs"):
            return None
        with _Sense(self._where):
            since = int(answer["header"]["revision"]) + 1
        asked = {"create_request": {"key": self._name(key), "start_revision": str(since)}}
        self._watches_as = yield from self._token()
        return Request("/v3/watch", _body(asked), self._watches_as)

    def came(self, line: bytes) -> bool:
        """Whether a line of the answer to a watch says that something happened."""
        with _Sense(self._where):
            document = json.loads(line)
            # As where etcd ends, or has no leader: that goes for the whole answer.
            failed = "error" in document
            said = {} if failed else document["result"]
            if said.get("events"):
                return True
            if not failed and not said.get("canceled"):
                return False
            why = said.get("cancel_reason") or _said(document) or "the watch was cancelled"
        raise self.unwatched(200, str(why))

    def unwatched(self, status: int, why: str) -> Unreachable:
        """What to make of a watch that is refused or ends, for etcd says *why*."""
        if any(text in why for text in (*_STALE, _FORBIDDEN)):
            self._login.ticket.forget(self._watches_as)
        # Whoever watches could read the key a moment ago: so even where it says that this is forbidden, or its
        # revision is compacted by now, ask anew.
        return self._unclear(status, why, self._watches_as)

    # --- the lease ---------------------------------------------------------------------------

    def _write(self, asked: Callable[[int], Mapping[str, Any]]) -> Steps[dict[str, Any]]:
        if not self._lease:
            self._lease = yield from self._find_lease()
        try:
            return (yield from self._ask(_TXN, asked(self._lease)))
        except _Expired as error:
            self._lease = yield from self._find_lease(but=error.lease or self._lease)
        return (yield from self._ask(_TXN, asked(self._lease)))

    def _find_lease(self, *, but: int = 0) -> Steps[int]:
        """That of the job's keys; a new one where there is none, or no other than *but*."""
        held = (yield from self.get([_LEASE]))[0]
        if held is not None and _number(held) not in (0, but):
            return _number(held)
        answer = yield from self._ask("/v3/lease/grant", {"TTL": str(int(self._keep_seconds))})
        with _Sense(self._where):
            mine = int(answer["ID"])
        value = b"%d" % mine
        if held is None:
            asked = self._unless_there(_LEASE, value, mine)
        else:
            expected = {"target": "VALUE", "key": self._name(_LEASE), "value": _text(held)}
            asked = {"compare": [expected], "success": [self._put(_LEASE, value, mine)]}
        try:
            answer = yield from self._ask(_TXN, asked)
        except Denied:
            # Who may only read leaves nothing behind.
            yield from self._ask(_REVOKE, {"ID": str(mine)})
            raise
        if answer.get("succeeded"):
            return mine
        # Another one was faster; nothing hangs on this one.
        yield from self._ask(_REVOKE, {"ID": str(mine)})
        held = (yield from self.get([_LEASE]))[0]
        if held is None or not _number(held):
            # What is written with none would stay for ever.
            raise Unreachable(self._where, "the job's keys are being deleted")
        return _number(held)

    # --- one request -------------------------------------------------------------------------

    def _ask(self, path: str, document: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        body, renewed = _body(document), False
        while True:
            token = yield from self._token()
            answer = yield Request(path, body, token)
            found = self._document(answer)
            if answer.status == 200 and "error" not in found:
                return found
            said = _said(found)
            nobody = not token and _FORBIDDEN in said
            if not self._login.user or not (nobody or any(text in said for text in _STALE)):
                raise self._refusal(answer.status, said, token)
            self._login.ticket.forget(token)
            if renewed:
                # Users are being changed right now: that says nothing about ours yet.
                raise self._unclear(answer.status, said, token)
            renewed = True

    def _token(self) -> Steps[str]:
        login = self._login
        if not login.user:
            return ""
        token = login.ticket.token
        if token is None:
            if self._renewed is not None:
                self._login = login = self._renewed()
            login.ticket.token = token = yield from self._log_in(login)
        return token

    def _log_in(self, login: Login) -> Steps[str]:
        ticket = login.ticket
        for password in ticket.passwords(login.password):
            asked = _body({"name": login.user, "password": password})
            answer = yield Request(_AUTHENTICATE, asked)
            found = self._document(answer)
            said = _said(found)
            if answer.status == 200:
                token = str(found.get("token", ""))
                if not token or not token.isascii() or not token.isprintable():
                    raise Unreachable(self._where, "no etcd v3 gateway answers: it gives no token")
                ticket.took(password)
                return token
            if _NO_USERS in said:
                return ""
            if _WRONG not in said:
                raise self._refusal(answer.status, said, password)
            ticket.refused(password)
        raise Denied(self._where, f"etcd knows no user {login.user!r} with this password")

    def _document(self, answer: Answer) -> dict[str, Any]:
        try:
            found: Any = json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            found = error
        if isinstance(found, dict):
            return found
        if answer.status == 200:
            raise Unreachable(self._where, "no etcd v3 gateway answers: its answer is no object")
        return {"message": answer.body[:200].decode(errors="replace")}

    def _refusal(self, status: int, said: str, secret: str = "") -> Unreachable:
        user = self._login.user
        if _NO_LEASE in said:
            return _Expired(self._where, said, self._lease)
        if _WRONG in said:
            return Denied(self._where, f"etcd knows no user {user!r} with this password")
        if not user and (_FORBIDDEN in said or "user name is empty" in said):
            return Denied(self._where, "etcd wants a user and a password")
        if _FORBIDDEN in said:
            reason = f"etcd gives {user!r} no permission to read and write below {self._prefix}/"
            return Denied(self._where, reason)
        return self._unclear(status, said, secret)

    def _unclear(self, status: int, said: str, secret: str = "") -> Unreachable:
        # A stranger may say what it was told.
        shown = said.replace(secret, "...") if secret else said
        shown = "".join(c if c.isprintable() else " " for c in shown[:200])
        return Unreachable(self._where, f"answered {status}: {shown}")

    # --- parts of requests -------------------------------------------------------------------

    def _name(self, key: str) -> str:
        return _text(f"{self._prefix}/{key}".encode())

    def _range(self, key: str) -> dict[str, Any]:
        return {"request_range": {"key": self._name(key)}}

    def _put(self, key: str, value: bytes, lease: int) -> dict[str, Any]:
        put = {"key": self._name(key), "value": _text(value), "lease": str(lease)}
        return {"request_put": put}

    def _unless_there(self, key: str, value: bytes, lease: int) -> dict[str, Any]:
        absent = {"target": "CREATE", "key": self._name(key), "create_revision": "0"}
        put, read = self._put(key, value, lease), self._range(key)
        return {"compare": [absent], "success": [put], "failure": [read]}


class _Expired(Unreachable):
    """The lease that something was to be written with is over."""

    def __init__(self, where: str, reason: str, lease: int) -> None:
        super().__init__(where, reason)
        self.lease = lease


class _Sense:
    """What makes no sense where this reads it was said by no etcd."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, _SENSELESS):
            reason = str(error) or type(error).__name__
            raise Unreachable(self._where, f"no etcd v3 gateway answers: {reason}") from error


def _held(response: Mapping[str, Any]) -> bytes | None:
    """What a range of one key has found."""
    held = response["response_range"].get("kvs", [])
    return base64.b64decode(held[0].get("value", ""), validate=True) if held else None


def _said(document: Mapping[str, Any]) -> str:
    """What a refusal says, as etcd 3.4 to 3.6 put it."""
    error = document.get("error")
    inner = error.get("message") if isinstance(error, Mapping) else error
    return str(document.get("message") or inner or "")[:1000]


def _number(text: bytes) -> int:
    """A lease's; 0 where it is none."""
    if not text.isdigit() or len(text) > 19:
        return 0
    number = int(text)
    return number if number < 2**63 else 0


def _body(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
