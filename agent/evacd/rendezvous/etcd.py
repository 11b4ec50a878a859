"""A client of etcd over the JSON gateway of its v3 API; see `evac.rendezvous.etcd_keys` for the source."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

_MOST_BYTES = 8 << 20


class NoGateway(ConnectionError):
    """What answers there is no etcd v3, or refuses."""


class Etcd:
    """One job's keys; see `joblog.Keys`. Its caller sets the time limit."""

    def __init__(self, session: aiohttp.ClientSession, host: str, port: int, prefix: str) -> None:
        self._session = session
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._prefix = prefix

    async def get(self, key: str) -> bytes | None:
        """See `joblog.Keys.get`."""
        return _first(await self._ask("/v3/kv/range", {"key": self._name(key)}))

    async def create(self, key: str, value: bytes) -> bytes:
        """See `joblog.Keys.create`."""
        name = self._name(key)
        answer = await self._ask(
            "/v3/kv/txn",
            {
                "compare": [{"target": "CREATE", "key": name, "create_revision": "0"}],
                "success": [{"request_put": {"key": name, "value": _text(value)}}],
                "failure": [{"request_range": {"key": name}}],
            },
        )
        if answer.get("succeeded"):
            return value
        try:
            return _first(answer["responses"][0]["response_range"]) or b""
        except (LookupError, TypeError) as error:
            raise NoGateway("it does not speak etcd v3") from error

    def _name(self, key: str) -> str:
        return _text(f"{self._prefix}/{key}".encode())

    async def _ask(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        try:
            async with self._session.post(
                self._url + path,
                json=document,
                allow_redirects=False,
                # Ours is the only time limit.
                timeout=aiohttp.ClientTimeout(total=None),
            ) as response:
                if response.status != 200:
                    raise NoGateway(f"answered {response.status}")
                answer = json.loads(await _whole(response.content))
        except aiohttp.ClientError as error:
            raise NoGateway(str(error) or type(error).__name__) from error
        except (ValueError, RecursionError) as error:
            raise NoGateway("it does not speak etcd v3") from error
        if not isinstance(answer, dict):
            raise NoGateway("it does not speak etcd v3")
        return answer


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """All of it: what it gives at once of a long answer is only its beginning."""
    text = bytearray()
    async for piece in content.iter_any():
        text += piece
        if len(text) > _MOST_BYTES:
            raise NoGateway(f"an answer of more than {_MOST_BYTES} bytes")
    return bytes(text)


def _first(found: Mapping[str, Any]) -> bytes | None:
    try:
        held = found.get("kvs") or []
        return base64.b64decode(held[0].get("value", ""), validate=True) if held else None
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise NoGateway("it does not speak etcd v3") from error


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
