"""Which cloud this machine is on: what its firmware says, confirmed by the metadata service.

The firmware's strings are a hint: hypervisors that are no cloud write some of them, too, and a
container may see none. So the services that they name are asked, all of them where they name
none, and whoever answers as only itself would has the last word.

Sources for the strings: the platform checks of cloud-init and systemd-detect-virt describe the
same ones; docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html;
cloud.google.com/compute/docs/instances/detect-compute-engine; for Azure its fixed chassis asset
tag. Alibaba's, Tencent's and Oracle's are unverified on a real machine.
"""

import asyncio
import json
import re
from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import aiohttp

from evacd.notice.gcp import FLAVOR, ROOT, google_flavor
from evacd.notice.metadata import Answer, Failed, Limits, MetadataClient

DMI = Path("/sys/class/dmi/id")
LIMIT_SECONDS = 3.0
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
URLS: Mapping[str, str] = MappingProxyType(
    {
        "aws": "http://169.254.169.254",
        "gcp": "http://169.254.169.254",
        "azure": "http://169.254.169.254",
        "alibaba": "http://100.100.100.200",
        # metadata.tencentyun.com, without asking a name server.
        "tencent": "http://169.254.0.23",
    }
)

# --- what comes out ---------------------------------------------------------------------


@dataclass(frozen=True)
class Detected:
    """It is this one.

    Attributes:
        cloud: ``aws``, ``gcp``, ``azure``, ``alibaba``, ``tencent`` or ``oracle``.
        how: What says so, for people.
    """

    cloud: str
    how: str


@dataclass(frozen=True)
class Undetected:
    """It cannot be told, and why."""

    reason: str


# --- the firmware's word, pure ----------------------------------------------------------


@dataclass(frozen=True)
class Dmi:
    """What the firmware calls the machine; "" where it says nothing."""

    sys_vendor: str = ""
    product_name: str = ""
    chassis_asset_tag: str = ""
    bios_vendor: str = ""
    board_vendor: str = ""


@dataclass(frozen=True)
class Hint:
    """A cloud that a string names.

    Attributes:
        sure: Nobody else writes that string.
        because: The string and where it stands.
    """

    cloud: str
    sure: bool
    because: str


# Field, what it is (the whole of it, case ignored), whose, and whether nobody else writes it.
_STRINGS = (
    ("product_name", "Google Compute Engine", "gcp", True),
    ("sys_vendor", "Amazon EC2", "aws", True),
    ("bios_vendor", "Amazon EC2", "aws", True),
    ("board_vendor", "Amazon EC2", "aws", True),
    ("chassis_asset_tag", "Amazon EC2", "aws", True),
    ("chassis_asset_tag", AZURE_TAG, "azure", True),
    ("chassis_asset_tag", "OracleCloud.com", "oracle", True),
    ("sys_vendor", "Alibaba Cloud", "alibaba", True),
    ("product_name", "Alibaba Cloud ECS", "alibaba", True),
    ("sys_vendor", "Tencent Cloud", "tencent", True),
    # A Chromebook, a Hyper-V guest or a laptop, an old Xen guest anywhere.
    ("sys_vendor", "Google", "gcp", False),
    ("bios_vendor", "Google", "gcp", False),
    ("sys_vendor", "Microsoft Corporation", "azure", False),
    ("board_vendor", "Microsoft Corporation", "azure", False),
    ("sys_vendor", "Xen", "aws", False),
)


def judge(dmi: Dmi) -> tuple[Hint, ...]:
    """The clouds that the strings name, each once, the sure ones first."""
    hints: dict[str, Hint] = {}
    for name, text, cloud, sure in _STRINGS:
        if getattr(dmi, name).strip().lower() == text.lower():
            hints.setdefault(cloud, Hint(cloud, sure, f"DMI {name} is {text}"))
    return tuple(sorted(hints.values(), key=lambda hint: not hint.sure))


def read_dmi(root: Path = DMI) -> Dmi:
    """Read the strings; what cannot be read says nothing. Blocks, briefly."""
    found = {}
    for field in fields(Dmi):
        try:
            raw = (root / field.name).read_bytes()[:256]
        except OSError:
            continue
        text = raw.decode("utf-8", "replace").strip()
        found[field.name] = text if text.isprintable() else ""
    return Dmi(**found)


# --- the service's word -----------------------------------------------------------------

# Why it is not that cloud's service; "" where it is.
_Reply: TypeAlias = str
_Ask: TypeAlias = Callable[[MetadataClient], Awaitable[_Reply]]


async def _gcp(client: MetadataClient) -> _Reply:
    answer = await client.ask(ROOT + "instance/id", headers=FLAVOR, check=google_flavor)
    return _why_not(answer, lambda body: body.strip().isdigit())


def _token(path: str, header: str) -> _Ask:
    async def ask(client: MetadataClient) -> _Reply:
        answer = await client.ask(path, method="PUT", headers={header: "60"}, body=b"")
        return _why_not(answer, lambda body: _TOKEN.fullmatch(body.strip()) is not None)

    return ask


async def _azure(client: MetadataClient) -> _Reply:
    answer = await client.ask("/metadata/versions", headers={"Metadata": "true"})
    return _why_not(answer, _is_versions)


async def _tencent(client: MetadataClient) -> _Reply:
    answer = await client.ask("/latest/meta-data/instance-id")
    return _why_not(answer, lambda body: body.strip().startswith("ins-"))


_TOKEN = re.compile(r"[A-Za-z0-9+/=_-]{16,512}", re.ASCII)
_ASKS: Mapping[str, _Ask] = MappingProxyType(
    {
        "aws": _token("/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds"),
        "gcp": _gcp,
        "azure": _azure,
        "alibaba": _token("/latest/api/token", "X-aliyun-ecs-metadata-token-ttl-seconds"),
        "tencent": _tencent,
    }
)


def _is_versions(body: str) -> bool:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and isinstance(value.get("apiVersions"), list)


def _why_not(answer: Answer | Failed, is_its: Callable[[str], bool]) -> _Reply:
    if isinstance(answer, Failed):
        return answer.reason
    if answer.status != 200:
        return f"HTTP {answer.status}"
    return "" if is_its(answer.body) else "another kind of answer"


# --- both together ----------------------------------------------------------------------


async def detect(
    session: aiohttp.ClientSession,
    *,
    root: Path = DMI,
    urls: Mapping[str, str] = URLS,
    seconds: float = LIMIT_SECONDS,
) -> Detected | Undetected:
    """Find out where this is, within *seconds*.

    Args:
        session: From `open_session`.
        root: Where the firmware's strings are.
        urls: Whose service is where; a cloud that is not in it is not asked.

    Raises:
        ConfigError: One of *urls* is no ``http://ADDRESS[:PORT]``.
    """
    hints = judge(await asyncio.to_thread(read_dmi, root))
    named = [hint.cloud for hint in hints] or list(_ASKS)
    limits = Limits(connect=min(1.0, seconds), read=seconds)
    clients = {
        cloud: MetadataClient(session, urls[cloud], limits=limits)
        for cloud in named
        if cloud in _ASKS and cloud in urls
    }
    replies = dict.fromkeys(clients, f"no answer within {seconds:g} s")

    async def ask(cloud: str) -> None:
        replies[cloud] = await _ASKS[cloud](clients[cloud])

    try:
        async with asyncio.timeout(seconds), TaskGroup() as tasks:
            for cloud in clients:
                tasks.create_task(ask(cloud))
    except TimeoutError:
        pass  # who did not answer in time is already said not to have
    return decide(hints, replies)


def decide(hints: tuple[Hint, ...], replies: Mapping[str, str]) -> Detected | Undetected:
    """Put together what the firmware and the services say. Pure.

    Args:
        replies: By cloud, why its service did not answer as only itself would; "" where it did.
    """
    sure = [hint for hint in hints if hint.sure]
    because = {hint.cloud: hint.because for hint in hints}
    answer = [cloud for cloud, why in replies.items() if not why]
    if len(answer) > 1:
        # Something plays several clouds; the firmware does not.
        answer = [hint.cloud for hint in sure if hint.cloud in answer] or answer
    if len(answer) == 1:
        hint = because.get(answer[0])
        how = "its metadata service answers"
        return Detected(answer[0], f"{hint}, and {how}" if hint else how)
    if answer:
        names = " and ".join(answer)
        return Undetected(f"the metadata services of {names} all answer; say which it is")
    if len(sure) == 1:
        cloud = sure[0].cloud
        why = replies.get(cloud)
        unconfirmed = f", though its metadata service does not answer: {why}" if why else ""
        return Detected(cloud, sure[0].because + unconfirmed)
    if hints:
        said = ", ".join(hint.because for hint in hints)
        why = "; ".join(f"{cloud}: {why}" for cloud, why in replies.items())
        return Undetected(f"{said}, but no metadata service confirms it ({why})")
    return Undetected("the firmware names no cloud, and no metadata service answers")
