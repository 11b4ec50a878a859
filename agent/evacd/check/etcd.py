"""Really tries each etcd that is named in ``[etcd]``: TLS, the user, and what a departure needs there."""

import asyncio
import secrets
import stat
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from evac.errors import ConfigError
from evac.rendezvous.address import Address, prefix_of
from evac.rendezvous.keys import Denied, Unreachable
from evacd.check.findings import Finding, Verdict
from evacd.config import Config, EtcdConfig
from evacd.rendezvous.configured import read_etcds
from evacd.rendezvous.etcd import Etcd, Etcds, address_of
from evacd.rendezvous.jobstore import Forbidden, resolved

T = TypeVar("T")

NAME = "etcd"
# What a check leaves behind that is broken off goes by itself.
_KEEP_SECONDS = 60.0
_BELOW = prefix_of("")


async def check_etcd(config: Config, endpoint: str, *, seconds: float) -> Finding:
    """Try *endpoint* ("": only the files) for at most *seconds*, with keys of no job, which it deletes."""
    try:
        etcds = read_etcds(config)
        readable = _readable(config.etcd)
    except ConfigError as error:
        return Finding(NAME, Verdict.FAIL, f"{error.key} cannot be used", f"give {error.expected}")
    if not endpoint:
        return Finding(NAME, Verdict.OK, "none is named: the etcds of jobs are shown nothing")
    try:
        async with asyncio.timeout(seconds), aiohttp.ClientSession() as session:
            found = await _exercise(session, etcds, endpoint)
    except TimeoutError:
        reason = f"no answer within {seconds:g} s"
        cure = "is the address right, and does every firewall between let this machine through?"
    except Forbidden as error:
        reason, cure = str(error), "give the address of an etcd"
    except Denied as error:
        reason, cure = error.reason, _cure_of(error.reason)
    except (Unreachable, OSError, aiohttp.InvalidURL) as error:
        reason = error.reason if isinstance(error, Unreachable) else str(error)
        cure = "does an etcd with its JSON gateway listen there, as http or https, and is it well?"
    else:
        if readable:
            detail = f"{endpoint}: {found}; anybody may read {readable}"
            return Finding(NAME, Verdict.WARN, detail, f"chmod o= {readable}")
        return Finding(NAME, Verdict.OK, f"{endpoint}: {found}")
    return Finding(NAME, Verdict.FAIL, f"{endpoint}: {reason}", cure)


async def _exercise(session: aiohttp.ClientSession, etcds: Etcds, endpoint: str) -> str:
    """Says what works, for people.

    Raises:
        Denied: It does not, and why.
        Unreachable: It does not answer like an etcd.
        Forbidden: Nobody connects to such an address.
    """
    # A percent sign without a number behind it: the name of no job.
    address = address_of(endpoint, f"{_BELOW}%check-{secrets.token_hex(8)}")
    shown = await etcds.shown(address)
    ip = await resolved(address)
    keys = Etcd(session, address, ip, shown, keep_seconds=_KEEP_SECONDS)
    value = secrets.token_hex(8).encode()
    await _allowed("read", keys.get("probe"), address)
    held = await _allowed("write", keys.create("probe", value), address)
    if held != value or await keys.get("probe") != value:
        raise Unreachable(address.endpoint, "what was written did not come back")
    await keys.clear()
    if await keys.get("probe") is not None:
        raise Unreachable(address.endpoint, "what was deleted is still there")
    who = f"as user {shown.login.user!r}" if shown.login.user else "without a user"
    return (
        f"reads, writes and deletes below {_BELOW} {who}{'' if shown.context else ', without TLS'}"
    )


async def _allowed(what: str, act: Coroutine[Any, Any, T], address: Address) -> T:
    """Does it; where the user may not, says which of both."""
    try:
        return await act
    except Denied as error:
        if "no permission" not in error.reason:
            raise
        raise Denied(address.endpoint, f"its user may not {what} below {_BELOW}") from error


def _cure_of(reason: str) -> str:
    if "may not" in reason:
        return f"etcdctl role grant-permission ROLE --prefix=true readwrite {_BELOW}"
    if "password" in reason:
        return "give etcd.user and etcd.password_file as etcd knows them"
    if "client certificate" in reason:
        return "give etcd.cert_file and etcd.key_file that this etcd's own CA has signed"
    if "not to be trusted" in reason:
        return "give etcd.ca_file of who has signed its certificate, and the name that stands there"
    return "give it as http:// or https://, as it listens"


def _readable(config: EtcdConfig) -> Path | None:
    """Of our secrets, the first that every user of this machine can read."""
    for path in (config.password_file, config.key_file):
        if path is not None and path.stat().st_mode & stat.S_IROTH:
            return path
    return None
