"""What boto3 is best at, asked of it in a process of its own: it costs 30 MiB and 0.6 CPU seconds.

Runs as a script that reads one request from standard input and writes one answer to standard output, both
JSON; secrets pass through these pipes and nowhere else. Requests: ``credentials`` (the
whole chain: environment, profiles, SSO, containers, instance), ``preflight`` (is the bucket there,
and ours to use), ``uploads`` (multipart uploads that were begun and not ended), ``abort``.
"""

import json
import sys
from typing import Any


def main() -> None:
    """Answer one request."""
    try:
        import boto3  # type: ignore[import-untyped]  # noqa: F401 - it has no types; told now if missing
        import botocore.exceptions  # type: ignore[import-untyped]  # the same
    except ModuleNotFoundError:
        json.dump({"rejected": "boto3 is not installed: pip install 'evac[s3]'"}, sys.stdout)
        return
    asked = json.load(sys.stdin)
    try:
        answer = _VERBS[asked["do"]](asked)
    except botocore.exceptions.ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        answer = {"status": status, "code": error.response.get("Error", {}).get("Code", "")}
    except botocore.exceptions.NoCredentialsError:
        answer = {"rejected": "no credentials found in the environment, a profile or the machine"}
    except botocore.exceptions.PartialCredentialsError:
        answer = {"rejected": "half of the credentials is missing"}
    except botocore.exceptions.ConfigNotFound:
        answer = {"rejected": "the AWS configuration file is missing"}
    except botocore.exceptions.ProfileNotFound:
        answer = {"rejected": "there is no such AWS profile"}
    except botocore.exceptions.BotoCoreError as error:
        # Only its kind: its text may repeat what a credential process has printed.
        answer = {"silence": type(error).__name__}
    json.dump(answer, sys.stdout)


def _session(asked: dict[str, Any]) -> Any:
    import boto3

    keys = asked.get("keys")
    if keys is None:
        return boto3.Session(region_name=asked.get("region"))
    return boto3.Session(
        aws_access_key_id=keys["access"],
        aws_secret_access_key=keys["secret"],
        aws_session_token=keys["token"],
        region_name=asked.get("region"),
    )


def _client(asked: dict[str, Any]) -> Any:
    from botocore.config import Config  # type: ignore[import-untyped]  # it has no types

    settings = Config(
        connect_timeout=5, read_timeout=20, retries={"max_attempts": 3, "mode": "standard"}
    )
    region = asked.get("region") or "us-east-1"
    return _session({**asked, "region": region}).client(
        "s3", endpoint_url=asked.get("endpoint"), config=settings
    )


def _credentials(asked: dict[str, Any]) -> dict[str, Any]:
    session = _session({})
    found = session.get_credentials()
    if found is None:
        return {"rejected": "no credentials found in the environment, a profile or the machine"}
    frozen = found.get_frozen_credentials()
    # botocore has no public name for it; without one they are taken for lasting ones.
    expiry = getattr(found, "_expiry_time", None)
    return {
        "access": frozen.access_key,
        "secret": frozen.secret_key,
        "token": frozen.token,
        "expires": expiry.isoformat() if expiry is not None else None,
        "region": session.region_name,
    }


def _preflight(asked: dict[str, Any]) -> dict[str, Any]:
    _client(asked).head_bucket(Bucket=asked["bucket"])
    return {}


def _uploads(asked: dict[str, Any]) -> dict[str, Any]:
    """All below a prefix, each with the date of its last sign of life, and what time it is there."""
    client = _client(asked)
    found = []
    now = ""
    pages = client.get_paginator("list_multipart_uploads")
    for page in pages.paginate(Bucket=asked["bucket"], Prefix=asked["prefix"]):
        now = page["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        for upload in page.get("Uploads", ()):
            last = upload["Initiated"]
            # A body of a terabyte takes hours: what counts is its newest part.
            parts = client.get_paginator("list_parts")
            try:
                for some in parts.paginate(
                    Bucket=asked["bucket"], Key=upload["Key"], UploadId=upload["UploadId"]
                ):
                    last = max([last, *(part["LastModified"] for part in some.get("Parts", ()))])
            except client.exceptions.NoSuchUpload:
                continue  # it has just been ended
            found.append({"key": upload["Key"], "id": upload["UploadId"], "last": last.isoformat()})
    return {"uploads": found, "now": now}


def _abort(asked: dict[str, Any]) -> dict[str, Any]:
    client = _client(asked)
    aborted = 0
    for upload in asked["uploads"]:
        try:
            client.abort_multipart_upload(
                Bucket=asked["bucket"], Key=upload["key"], UploadId=upload["id"]
            )
        except client.exceptions.NoSuchUpload:
            continue  # its writer, or somebody else's clean-up, was quicker
        aborted += 1
    return {"aborted": aborted}


_VERBS = {
    "credentials": _credentials,
    "preflight": _preflight,
    "uploads": _uploads,
    "abort": _abort,
}

if __name__ == "__main__":
    main()
