"""A job's keys in etcd, over the JSON gateway of its v3 API, with the standard library.

Source: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/ and rpc.proto, read 2026-11; bytes
travel as base64, 64-bit numbers as text. torch's own etcd backends speak v2, which etcd 3.6 dropped.
"""

import base64
import http.client
import json
import socket
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from evac.rendezvous.keys import Unreachable
from evac.rendezvous.silence import bound


class EtcdKeys:
    """See `Keys`. A call takes *seconds* at most, save `wait`: that lasts until *dead_seconds* of silence."""

    def __init__(
        self, host: str, port: int, prefix: str, *, seconds: float = 5.0, dead_seconds: float = 15.0
    ) -> None:
        self._host, self._port, self._prefix, self._seconds = host, port, prefix, seconds
        self._dead_seconds = dead_seconds
        self._where = f"{host}:{port}"
        self._line: http.client.HTTPConnection | None = None
        self._watch: http.client.HTTPConnection | None = None
        self._closed = False

    def create(self, key: str, value: bytes) -> bytes:
        """See `Keys.create`."""
        name = self._name(key)
        answer = self._ask(
            "/v3/kv/txn",
            {
                "compare": [{"target": "CREATE", "key": name, "create_revision": "0"}],
                "success": [{"request_put": {"key": name, "value": _text(value)}}],
                "failure": [{"request_range": {"key": name}}],
            },
        )
        with self._translated():
            return value if answer.get("succeeded") else _held(answer["responses"][0]) or b""

    def replace(self, key: str, before: bytes, value: bytes) -> bool:
        """See `Keys.replace`."""
        name = self._name(key)
        if before:
            expected = {"target": "VALUE", "key": name, "value": _text(before)}
        else:
            expected = {"target": "CREATE", "key": name, "create_revision": "0"}
        put = {"request_put": {"key": name, "value": _text(value)}}
        answer = self._ask("/v3/kv/txn", {"compare": [expected], "success": [put]})
        return bool(answer.get("succeeded"))

    def put(self, key: str, value: bytes) -> None:
        """See `Keys.put`."""
        self._ask("/v3/kv/put", {"key": self._name(key), "value": _text(value)})

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """See `Keys.get`."""
        found: list[bytes | None] = []
        # etcd takes at most 128 operations in one transaction.
        for start in range(0, len(keys), 100):
            asked = [{"request_range": {"key": self._name(k)}} for k in keys[start : start + 100]]
            answer = self._ask("/v3/kv/txn", {"success": asked})
            with self._translated():
                responses = answer["responses"]
                if len(responses) != len(asked):
                    raise ValueError(f"{len(responses)} answers to {len(asked)} questions")
                found += map(_held, responses)
        return found

    def wait(self, key: str) -> None:
        """See `Keys.wait`."""
        answer = self._ask("/v3/kv/range", {"key": self._name(key)})
        if answer.get("kvs"):
            return
        with self._translated():
            since = int(answer["header"]["revision"]) + 1
            asked = {"create_request": {"key": self._name(key), "start_revision": str(since)}}
            # The stream stays silent until something happens: no time limit.
            self._watch = http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)
            try:
                self._watch.connect()
                self._watch.sock.settimeout(None)
                bound(self._watch.sock, self._dead_seconds)
                self._watch.request("POST", "/v3/watch", json.dumps(asked), _JSON)
                # The answer has the socket for itself where its server means to close it.
                with self._watch.getresponse() as response:
                    while line := response.readline(_MOST_LINE):
                        said = json.loads(line)["result"]
                        if said.get("events"):
                            return
                        if said.get("canceled"):
                            # The revision is compacted by now, say: ask anew.
                            raise ValueError(said.get("cancel_reason") or "the watch was cancelled")
            finally:
                self._watch.close()
        raise Unreachable(self._where, "the watch ended")

    def delete(self, key: str) -> None:
        """See `Keys.delete`."""
        self._ask("/v3/kv/deleterange", {"key": self._name(key)})

    def close(self) -> None:
        """See `Keys.close`."""
        self._closed = True
        for line in (self._line, self._watch):
            if line is not None and line.sock is not None:
                with suppress(OSError):
                    line.sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads from it
        if self._line is not None:
            self._line.close()

    def _name(self, key: str) -> str:
        return _text(f"{self._prefix}/{key}".encode())

    def _ask(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        if self._closed:
            raise Unreachable(self._where, "closed")
        with self._translated():
            if self._line is None:
                self._line = http.client.HTTPConnection(
                    self._host, self._port, timeout=self._seconds
                )
            try:
                self._line.request("POST", path, json.dumps(document), _JSON)
                response = self._line.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException):
                self._line.close()
                self._line = None
                raise
            if response.status != 200:
                said = text[:200].decode(errors="replace")
                raise Unreachable(self._where, f"answered {response.status}: {said}")
            answer: Any = json.loads(text)
            if not isinstance(answer, dict):
                raise TypeError("its answer is no object")
            return answer

    @contextmanager
    def _translated(self) -> Generator[None, None, None]:
        try:
            yield
        except (OSError, http.client.HTTPException, *_SENSELESS) as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(self._where, f"no etcd v3 gateway answers: {reason}") from error


_JSON = {"Content-Type": "application/json"}
# What a proxy that answers in etcd's place makes of whoever reads it.
_SENSELESS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_MOST_LINE = 8 << 20


def _held(response: Mapping[str, Any]) -> bytes | None:
    """What a range of one key has found."""
    held = response["response_range"].get("kvs", [])
    return base64.b64decode(held[0].get("value", ""), validate=True) if held else None


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
