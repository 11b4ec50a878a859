"""Where an object store is, as one URL: ``scheme://bucket/prefix?option=value``.

A URL is printed, logged and kept in manifests, so nothing secret may be in it: what opens a
store comes from the environment or from the machine's own identity.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from evac.errors import ConfigError

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}")
# A peer is found by its address, and there is no port that all would use.
_PEER = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9a-fA-F:.]{2,45}\]):[0-9]{1,5}")
# In place of addresses: those of the job's other nodes, whichever they are.
JOB = "job"
_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
# What a bucket or container can be called at all, by scheme; dots part a name's labels.
# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html,
# docs.cloud.google.com/storage/docs/buckets ("Bucket names"),
# learn.microsoft.com/en-us/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata.
_LABELS: Mapping[str, tuple[re.Pattern[str], int, str]] = MappingProxyType(
    {
        "s3": (
            re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*"),
            63,
            "a bucket's name: 3 to 63 of a-z, 0-9, - and single dots",
        ),
        "gs": (
            re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*"),
            222,
            "a bucket's name: 3 to 63 of a-z, 0-9, - and _, or several such with dots between",
        ),
        "az": (
            re.compile(r"[a-z0-9]+(-[a-z0-9]+)*"),
            63,
            "a container's name: 3 to 63 of a-z, 0-9 and single -",
        ),
    }
)
# No user:password@, no query: an endpoint is a host, and for Azurite a first path component.
_ENDPOINT = re.compile(
    r"https?://[A-Za-z0-9._-]+(\[[0-9a-f:]+\])?(:[0-9]{1,5})?(/[A-Za-z0-9._-]+)*/?"
)


@dataclass(frozen=True)
class Location:
    """One object store.

    Attributes:
        bucket: Or container.
        prefix: What all keys begin with; "" for none, else without slashes at its ends.
        options: From the URL's query.
    """

    scheme: str
    bucket: str
    prefix: str
    options: Mapping[str, str]

    @property
    def url(self) -> str:
        """The same for all ways to write it, and with nothing secret."""
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        query = f"?{urlencode(sorted(self.options.items()), safe=':/')}" if self.options else ""
        return f"{self.scheme}://{self.bucket}{path}{query}"

    def key(self, name: str) -> str:
        """The object's name in the bucket."""
        return f"{self.prefix}/{name}" if self.prefix else name


def parse(url: str, *, options: Collection[str]) -> Location:
    """Take a store's URL apart.

    Args:
        options: Those that this kind of store knows.

    Raises:
        ConfigError: Malformed, of an unknown option, or with a password; it repeats no secret.
    """
    split = urlsplit(url)
    shown = f"{split.scheme}://{split.netloc.rpartition('@')[2]}{split.path}"
    if "@" in split.netloc:
        raise ConfigError("store", shown, "no user and no password in a URL: use the environment")
    form = (
        "host:port, several of these with commas, or job"
        if split.scheme == "evac"
        else "bucket/prefix"
    )
    if not _named(split.scheme, split.netloc) or split.fragment:
        raise ConfigError("store", shown, f"{split.scheme}://{form}")
    if wrong := _impossible(split.scheme, split.netloc):
        raise ConfigError("store", shown, wrong)
    prefix = unquote(split.path).strip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise ConfigError("store", shown, "a prefix of plain names joined by single slashes")
    try:
        given = (
            dict(parse_qsl(split.query, keep_blank_values=True, strict_parsing=True))
            if (split.query)
            else {}
        )
    except ValueError:
        raise ConfigError("store", shown, "options as ?name=value&name=value") from None
    for name, value in given.items():
        if name not in options:
            known = ", ".join(sorted(options))
            raise ConfigError("store", f"{shown}?{name}=", f"one of these options: {known}")
        if name == "endpoint" and not _ENDPOINT.fullmatch(value):
            raise ConfigError("store", f"{shown}?endpoint=", "http(s)://host:port")
        if name == "timeout" and not (value.isdecimal() and 1 <= int(value) <= 3600):
            raise ConfigError("store", f"{shown}?timeout=", "seconds of one request, 1 to 3600")
        if name == "connections" and not (value.isdecimal() and 1 <= int(value) <= 64):
            raise ConfigError("store", f"{shown}?connections=", "a number from 1 to 64")
    return Location(split.scheme, split.netloc, prefix, given)


def is_of_job(url: str) -> bool:
    """Whether *url* stands for the memory of the job's other nodes, whichever they are."""
    scheme, _, rest = url.partition("://")
    return scheme == "evac" and rest.partition("/")[0].partition("?")[0] == JOB


def is_of_peers(url: str) -> bool:
    """Whether *url* stands for the memory of several nodes: those of a job, or some that it names."""
    return is_of_job(url) or (url.startswith("evac://") and "," in urlsplit(url).netloc)


def is_address(text: str) -> bool:
    """Whether it is ``host:port``."""
    return _PEER.fullmatch(text) is not None and 0 < int(text.rpartition(":")[2]) < 65536


def _named(scheme: str, name: str) -> bool:
    if scheme == "evac":
        return name == JOB or all(_PEER.fullmatch(one) for one in name.split(","))
    return _BUCKET.fullmatch(name) is not None


def _impossible(scheme: str, name: str) -> str:
    """What a name should be where no bucket can have it; "" where one can."""
    if scheme == "evac":
        known = name == JOB or all(is_address(one) for one in name.split(","))
        return "" if known else "a port from 1 to 65535"
    pattern, most, expected = _LABELS[scheme]
    ends = name[0].isalnum() and name[-1].isalnum()
    fits = ends and 3 <= len(name) <= most and pattern.fullmatch(name) is not None
    return "" if fits and not _ADDRESS.fullmatch(name) else f"{expected}; no - or _ at its ends"
