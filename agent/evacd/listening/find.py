"""Which cloud's notices are to be heard: as set, or as found out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from evacd.config import Config
from evacd.notice.detect import DMI, URLS, Detected, detect
from evacd.notice.metadata import open_session

# An address each, so that a silent one keeps no other waiting.
_CONNECTIONS = 5
CLOUDS = ("aws", "gcp", "azure")
URL_IPV6 = "http://[fd00:ec2::254]"
CURE = "say which it is: --cloud aws, gcp or azure; --cloud none where it is none"


@dataclass(frozen=True)
class Found:
    """What is known of where this machine is.

    Attributes:
        cloud: One of `CLOUDS`; "" where no cloud is heard.
        how: What says so, or why none is heard.
        cure: What a person can do about that; "" where nothing has to be done.
        final: Asking again would not find more.
    """

    cloud: str
    how: str
    cure: str = ""
    final: bool = True


async def find(config: Config, *, dmi: Path = DMI) -> Found:
    """Find out, within a few seconds; at once where it is set.

    Args:
        dmi: Where the firmware's strings are.

    Raises:
        ConfigError: The metadata service's address is none.
    """
    chosen = config.notice.cloud
    if chosen != "auto":
        where = config.origins.get("notice.cloud", "the configuration")
        return Found("" if chosen == "none" else chosen, f"{chosen}, set by {where}")
    async with open_session(connections=_CONNECTIONS) as session:
        detected = await detect(session, root=dmi, urls=_urls(config))
    if not isinstance(detected, Detected):
        return Found("", detected.reason, CURE, final=False)
    if detected.cloud not in CLOUDS:
        how = f"{detected.cloud} ({detected.how}), whose metadata announces nothing that is heard"
        return Found("", how, "its shutdown is heard; --cloud none says that this is meant")
    return Found(detected.cloud, f"detected: {detected.how}")


def url_of(config: Config, cloud: str) -> str:
    """Where *cloud*'s metadata service is."""
    own = URL_IPV6 if cloud == "aws" and config.aws.ipv6 else URLS[cloud]
    return config.notice.metadata_url or own


def _urls(config: Config) -> Mapping[str, str]:
    if config.notice.metadata_url:
        return MappingProxyType(dict.fromkeys(CLOUDS, config.notice.metadata_url))
    return MappingProxyType({cloud: url_of(config, cloud) for cloud in URLS})
