"""Where tests of S3 put things, and how they open it."""

from evac.generation import Generation
from evac.store.location import parse
from evac.store.s3 import OPTIONS, S3Store
from evac.store.s3_keys import Chain
from tests.handlers.store.conftest import fresh

BUCKET = "evac-test"
BODY = f"user/job/{Generation(incarnation=1, step=2).directory}/__0_0.distcp"


def at(endpoint: str, *, bucket: str = BUCKET, more: str = "") -> S3Store:
    """A store whose keys are looked up anew, below a prefix of its own."""
    location = parse(f"s3://{bucket}/{fresh()}?endpoint={endpoint}{more}", options=OPTIONS)
    return S3Store(location, chain=Chain())


def xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
