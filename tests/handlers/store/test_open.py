"""`open_store`: what each scheme needs, and what it says where that is not installed."""

import os
import subprocess
import sys

import pytest

from evac.errors import ConfigError
from evac.store import open_store

SCRIPT = """
import sys
for name in sys.argv[2:]:
    sys.modules[name] = None  # as if it were not installed
from evac.errors import ConfigError
from evac.store import open_store
try:
    open_store(sys.argv[1])
except ConfigError as error:
    print(error)
"""


def run(script: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ).stdout


@pytest.mark.parametrize(
    ("url", "missing", "extra"),
    [
        ("s3://bucket", "obstore", "s3"),
        ("az://container?account=a", "obstore", "azure"),
        ("gs://bucket", "google.auth", "gcs"),
        ("gs://bucket", "crc32c", "gcs"),
    ],
)
def test_a_missing_library_is_named_with_its_cure(url: str, missing: str, extra: str) -> None:
    said = run(SCRIPT, url, missing)

    assert f"no module named {missing}" in said
    assert f"pip install 'evac[{extra}]'" in said


def test_a_store_loads_no_other_stores_library() -> None:
    script = """
import sys
from evac.store import open_store
open_store(sys.argv[1])
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
    libraries = {"boto3", "botocore", "obstore", "google", "requests"}

    assert not libraries & set(run(script, "file:///tmp/x").split())
    assert libraries & set(run(script, "s3://bucket").split()) == {"obstore"}
    assert libraries & set(run(script, "gs://bucket").split()) == {"google", "requests"}


def test_a_folder_is_told_how_its_url_is_written() -> None:
    with pytest.raises(ConfigError, match=r"^store: /mnt/ckpt: expected file:///mnt/ckpt$"):
        open_store("/mnt/ckpt")
    with pytest.raises(ConfigError, match="file, s3, gs, az or evac"):
        open_store("ftp://host/folder")
