"""A client of etcd for departures: requests of `evac.rendezvous.etcd_calls` over aiohttp.

Which etcd that is, a workload may say. So a user, a password and a client certificate are shown only where the
operator has named the endpoint, and used only for keys of torchrun jobs: nobody is to get hold of them, or of
keys that they open, by a made-up address.
"""

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import aiohttp

from evac.rendezvous.address import ETCD, ETCD_TLS, PORTS, Address, prefix_of
from evac.rendezvous.etcd_access import NO_FILES, Access, EtcdFiles, Shown, refusal_of
from evac.rendezvous.etcd_calls import KEEP_SECONDS, Answer, EtcdCalls, Request, Steps, T
from evac.rendezvous.keys import Denied, Unreachable
from evacd.apart import apart

_MOST_BYTES = 8 << 20
# For word on why a connection over TLS was broken off.
_WHY_SECONDS = 1.0


class Etcds:
    """What each etcd is shown.

    Args:
        endpoints: ``http://host:port`` and ``https://host:port`` that *files* are for.
    """

    def __init__(self, endpoints: Iterable[str] = (), files: EtcdFiles = NO_FILES) -> None:
        self._named = {_place(address_of(one, "")): Access(files) for one in endpoints}
        # Whom to believe is no secret.
        self._others = Access(replace(NO_FILES, ca=files.ca))

    async def shown(self, address: Address) -> Shown:
        """What the etcd at *address* is shown now.

        Raises:
            Denied: A file is wrong, or those keys are none of ours.
        """
        named = self._named.get(_place(address))
        if named is not None and named.files.user and not address.prefix.startswith(prefix_of("")):
            reason = f"no keys but those below {prefix_of('')} are written with a password"
            raise Denied(address.endpoint, reason)
        try:
            access = named or self._others
            return await apart(partial(access.read, tls=address.scheme == ETCD_TLS))
        except ValueError as error:
            raise Denied(address.endpoint, str(error)) from error


class Etcd:
    """One job's keys; see `joblog.Keys`. Its caller sets the time limit.

    Args:
        ip: Of the address, to connect to.
        keep_seconds: That the keys stay without anybody who keeps them.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: Address,
        ip: str,
        shown: Shown,
        *,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._session, self._address, self._ip, self._shown = session, address, ip, shown
        scheme = "http" if shown.context is None else "https"
        self._url = f"{scheme}://{f'[{ip}]' if ':' in ip else ip}:{address.port}"
        self._calls = EtcdCalls(
            address.endpoint, address.prefix, shown.login, keep_seconds=keep_seconds
        )

    async def get(self, key: str) -> bytes | None:
        """See `joblog.Keys.get`."""
        return (await self._do(self._calls.get([key])))[0]

    async def create(self, key: str, value: bytes) -> bytes:
        """See `joblog.Keys.create`."""
        return await self._do(self._calls.create(key, value))

    async def clear(self) -> None:
        """Delete all of the job's."""
        await self._do(self._calls.clear())

    async def _do(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                request = steps.send(await self._send(request))
        except StopIteration as done:
            found: T = done.value
            return found

    async def _send(self, request: Request) -> Answer:
        where, context = self._address.endpoint, self._shown.context
        try:
            async with self._session.post(
                self._url + request.path,
                data=request.body,
                headers={**request.headers, "Host": where},
                allow_redirects=False,
                ssl=context or True,
                server_hostname=self._address.host if context else None,
                # Ours is the only time limit.
                timeout=aiohttp.ClientTimeout(total=None),
            ) as response:
                return Answer(response.status, await self._whole(response.content))
        except aiohttp.ClientError as error:
            if context is not None and (why := _said(error) or await self._refusal(context)):
                raise Denied(where, why) from error
            # aiohttp's own words name objects of Python's.
            told = getattr(error, "os_error", None) or error
            raise Unreachable(where, str(told) or type(told).__name__) from error
        except OSError as error:
            raise Unreachable(where, str(error) or type(error).__name__) from error

    async def _whole(self, content: aiohttp.StreamReader) -> bytes:
        """All of it: what it gives at once of a long answer is only its beginning."""
        text = bytearray()
        async for piece in content.iter_any():
            text += piece
            if len(text) > _MOST_BYTES:
                where = self._address.endpoint
                raise Unreachable(where, f"an answer of more than {_MOST_BYTES} bytes")
        return bytes(text)

    async def _refusal(self, context: ssl.SSLContext) -> str:
        """Why it breaks off what we send: it says so to whoever sends nothing.

        With TLS 1.3 we have begun to ask by the time that it turns our certificate down, and what it said
        of that may be lost with the connection.
        """
        host = self._address.host
        try:
            async with asyncio.timeout(_WHY_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self._ip, self._address.port, ssl=context, server_hostname=host
                )
                try:
                    await reader.read(1)
                finally:
                    writer.transport.abort()
        except OSError as error:  # TimeoutError and SSLError are some, too
            return refusal_of(error)
        return ""


def _said(error: aiohttp.ClientError) -> str:
    """What an error of aiohttp says of TLS."""
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None)
    # Itself it may be an SSLError, too, and say nothing as such.
    return refusal_of(inner) or refusal_of(error.__cause__)


def address_of(endpoint: str, prefix: str) -> Address:
    """Of the keys below *prefix* in the etcd at *endpoint*, ``http://host:port`` or ``https://host:port``."""
    parts = urlsplit(endpoint)
    scheme = ETCD_TLS if parts.scheme == "https" else ETCD
    return Address(scheme, parts.hostname or "", parts.port or PORTS[scheme], prefix)


def _place(address: Address) -> tuple[str, str, int]:
    return address.scheme, address.host, address.port
