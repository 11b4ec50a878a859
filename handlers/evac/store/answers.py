"""What an object store's answer means: worth another try or not, in a few words for a person.

Only what is named here is told on. The servers' and libraries' own texts repeat URLs, and a URL may
carry a signature that opens the store.

Codes: Amazon S3 API Reference, "Error responses"; Azure Blob service error codes; Google Cloud
Storage "HTTP status and error codes" (read 2026-11).
"""

import re

from evac.errors import StoreError, StoreMissing, StoreRejected, StoreUnavailable

_NO_OBJECT = {"NoSuchKey", "BlobNotFound", "notFound"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName", "ContainerBeingDeleted"}
# Also as the SDKs of AWS have it, which know them from other services behind a store: its keys', say.
_THROTTLED = {
    "SlowDown", "ServerBusy", "Throttling", "ThrottlingException", "ThrottledException",
    "RequestThrottled", "TooManyRequests", "TooManyRequestsException", "RequestLimitExceeded",
    "BandwidthLimitExceeded",
}  # fmt: skip
# The next request is signed with newer keys.
_EXPIRED = {"ExpiredToken", "RequestExpired", "TokenRefreshRequired"}
# Of parts that the call before has used up, whose answer was lost, or that somebody has taken for abandoned; a
# put from the start finds out.
_PARTS_GONE = {"NoSuchUpload", "InvalidBlockList", "InvalidPart"}
_DAMAGED = {
    "BadDigest",
    "IncompleteBody",
    "XAmzContentSHA256Mismatch",
    "Md5Mismatch",
    "Crc64Mismatch",
}
# Azure says so of a token of Entra ID that has expired, with 400 it means another thing; and Google of its own.
_STALE_TOKEN = {"InvalidAuthenticationInfo", "authError"}
# Others may be there by now: whoever finds keys looks again.
_NO_KEYS = {"InvalidAccessKeyId", "InvalidToken", "InvalidClientTokenId", "SignatureDoesNotMatch"}
_REJECTED = {
    "AuthorizationHeaderMalformed": "the bucket is in another region: say which with ?region=",
    "PermanentRedirect": "the bucket is in another region: say which with ?region=",
    "IllegalLocationConstraintException": "the bucket is in another region: say which with ?region=",
    "InvalidRegion": "the bucket is in another region: say which with ?region=",
    "QuotaExceeded": "quota exceeded",
    "XMinioStorageFull": "the store is full",
    "InvalidBlobType": "there is a blob of another type",
    "InsufficientAccountPermissions": "access denied (InsufficientAccountPermissions)",
    "AccountIsDisabled": "the account is disabled",
    "EntityTooLarge": "too large for this store",
    "InvalidObjectState": "archived: it must be restored first",
    "BlobImmutableDueToPolicy": "a retention policy forbids to replace it",
    "BlobArchived": "archived: it must be restored first",
}
_STATUS = re.compile(r"status code: (\d{3})|\(code: (\d{3})\)")
_CODE = re.compile(r"<Code>\s*([\w.]+)\s*</Code>|x-ms-error-code: (\w+)")
# What Azure says beside its code for all that is wrong with a signature, and Google's token endpoint of an assertion.
_SKEWED = re.compile(r"date header too old|reasonable timeframe")

EXPIRED = "credentials have expired"
# Whoever keeps it right may set it any moment: what is signed then counts.
CLOCK = "this machine's clock is wrong"
# What a store says that has no room, and one that lacks a method.
_FULL, _LACKING = 507, {501: "the store cannot do that", 505: "the store cannot do that"}
# Why a range was refused; whoever asked for it can find out whether it begins behind the end.
BEYOND = "it does not give that range"
# What obstore says of a range behind the end, where the server did not refuse it.
_RANGE = re.compile(r"InvalidRangeRequest|NotPartial|ParseContentRange")

# How obstore's and requests' texts tell what happened when there was no answer.
_SILENCE = (
    (re.compile(r"dns error|failed to lookup|Name or service not known|NameResolution"), True,
     "its host name cannot be resolved"),
    (re.compile(r"InvalidCertificate|CERTIFICATE_VERIFY|UnknownIssuer"), False,
     "TLS: its certificate is not trusted"),
    (re.compile(r"InvalidContentType|WRONG_VERSION_NUMBER|CorruptMessage|HandshakeFailure"), False,
     "TLS: the other side speaks something else"),
    (re.compile(r"kind: Timeout|TimedOut|timed out|Timeout"), True, "timed out"),
    (re.compile(r"ConnectionRefused|Connection refused"), True, "connection refused"),
    (re.compile(r"Unreachable|No route"), True, "network unreachable"),
    (re.compile(r"ConnectionReset|BrokenPipe|Interrupted|Broken pipe|reset by peer|Remote end closed"
                r"|IncompleteMessage|ConnectionAborted|UnexpectedEof|closed|IncompleteRead"), True,
     "connection lost"),
    (re.compile(r"kind: Decode|InvalidGetResponse|error decoding"), True, "half an answer"),
)  # fmt: skip


def of_text(key: str, text: str) -> StoreError:
    """What an error of obstore's means, from its text.

    Args:
        text: As `str(error)` has it: the answer's status and body, or how there was none.
    """
    status = _STATUS.search(text)
    if status is None and _RANGE.search(text):
        return StoreRejected(key, BEYOND)
    if status is None:
        return of_silence(key, text)
    if is_skewed(text):
        return StoreUnavailable(key, CLOCK)
    code = _CODE.search(text)
    return of_status(
        key, int(status[1] or status[2]), next(filter(None, code.groups()), "") if code else ""
    )


def of_status(key: str, status: int, code: str) -> StoreError:
    """What an HTTP answer means.

    Args:
        code: The store's own word for the error; "" where it said none.
    """
    named = f"HTTP {status} {code}".strip()
    code = code.rpartition(".")[2]  # of its keys' service: KMS.ThrottlingException
    if code == "RequestTimeTooSkewed":
        return StoreUnavailable(key, CLOCK)
    if code in _EXPIRED:
        return StoreUnavailable(key, f"{EXPIRED} ({code})")
    if code in _NO_BUCKET:
        return StoreRejected(key, "no such bucket or container")
    if code in _REJECTED:
        return StoreRejected(key, _REJECTED[code])
    if status == 404 and (code in _NO_OBJECT or not code):
        return StoreMissing(key, "no such object")
    if status == 416:
        return StoreRejected(key, BEYOND)
    if status == 401 and code in _STALE_TOKEN:
        return StoreUnavailable(key, f"{EXPIRED} ({code})")
    if status in (401, 403):
        return StoreRejected(key, f"access denied ({named})")
    if status == 429 or code in _THROTTLED:
        return StoreUnavailable(key, f"throttled ({named})")
    # 408 and RequestTimeout: the body came too slowly. 409: somebody else was at it just now.
    late = status == 408 or code == "RequestTimeout"
    if code in _DAMAGED:
        return StoreUnavailable(key, f"damaged on its way ({named})")
    if status == _FULL:
        return StoreRejected(key, f"the store is full ({named})")
    if status in _LACKING:
        return StoreRejected(key, f"{_LACKING[status]} ({named})")
    if late or status in (409, 425) or code in _PARTS_GONE or status >= 500:
        return StoreUnavailable(key, f"the store failed ({named})")
    return StoreRejected(key, f"the store refused ({named})")


def is_skewed(text: str) -> bool:
    """Whether a refusal's text says that what was signed bears a time that is not now."""
    return _SKEWED.search(text) is not None


def wants_other_keys(error: StoreError) -> bool:
    """Whether the store takes nothing more that is signed with these keys."""
    return error.reason.startswith(EXPIRED) or any(f" {one})" in error.reason for one in _NO_KEYS)


def of_silence(key: str, text: str) -> StoreError:
    """What it means that no answer came, from how the library tells it."""
    for pattern, again, reason in _SILENCE:
        if pattern.search(text):
            return StoreUnavailable(key, reason) if again else StoreRejected(key, reason)
    return StoreUnavailable(key, "no answer")
