"""Which answers of stores are worth another try: a law over all that is named, and what few words hide."""

import pytest

from evac.errors import StoreError, StoreMissing, StoreRejected, StoreUnavailable
from evac.store import answers

# What passes by itself, or with a put from the start: status, code.
PASSES = [
    (400, "RequestTimeout"), (408, ""), (409, "OperationAborted"), (409, "ConditionalRequestConflict"), (425, ""),
    (429, "TooManyRequests"), (400, "KMS.ThrottlingException"), (503, "SlowDown"), (503, "ServerBusy"),
    (500, "InternalError"), (500, "OperationTimedOut"), (502, ""), (504, ""),
    (404, "NoSuchUpload"), (400, "InvalidPart"), (400, "InvalidBlockList"),
    (400, "IncompleteBody"), (400, "BadDigest"), (400, "Md5Mismatch"), (400, "XAmzContentSHA256Mismatch"),
    (400, "ExpiredToken"), (401, "InvalidAuthenticationInfo"), (401, "authError"), (403, "RequestTimeTooSkewed"),
]  # fmt: skip
# What does not, however often it is asked.
STAYS = [
    (403, "AccessDenied"), (403, "InvalidAccessKeyId"), (403, "SignatureDoesNotMatch"), (401, ""),
    (404, "NoSuchBucket"), (404, "ContainerNotFound"), (409, "ContainerBeingDeleted"),
    (507, "XMinioStorageFull"), (507, ""), (501, "NotImplemented"), (409, "InvalidBlobType"),
    (409, "BlobImmutableDueToPolicy"), (400, "InvalidRequest"), (400, "KMS.DisabledException"),
    (403, "QuotaExceeded"), (405, "MethodNotAllowed"), (412, "LeaseIdMissing"), (301, "PermanentRedirect"),
]  # fmt: skip


def said(status: int, code: str) -> StoreError:
    """As obstore tells it."""
    body = f"<Error><Code>{code}</Code></Error>" if code else ""
    return answers.of_text("key", f"Generic S3 error: status code: {status} Because, body: {body}")


@pytest.mark.parametrize(("status", "code"), PASSES)
def test_what_may_pass_is_worth_another_try(status: int, code: str) -> None:
    assert type(said(status, code)) is StoreUnavailable


@pytest.mark.parametrize(("status", "code"), STAYS)
def test_what_stays_is_tried_no_more(status: int, code: str) -> None:
    assert type(said(status, code)) is StoreRejected


@pytest.mark.parametrize("code", ["NoSuchKey", "BlobNotFound", ""])
def test_a_missing_object_is_no_missing_bucket(code: str) -> None:
    assert type(said(404, code)) is StoreMissing


@pytest.mark.parametrize(
    ("status", "code", "wants"),
    [
        (400, "ExpiredToken", True), (403, "InvalidAccessKeyId", True), (403, "SignatureDoesNotMatch", True),
        (400, "InvalidToken", True), (403, "AccessDenied", False), (503, "SlowDown", False),
    ],
)  # fmt: skip
def test_only_what_other_keys_may_change_makes_us_look_for_others(
    status: int, code: str, wants: bool
) -> None:
    assert answers.wants_other_keys(said(status, code)) is wants
