"""What a sink remembers of S3's objects: names and sizes of all, the bytes of small ones.

A daemon that flushes reads its manifests back and lists what is there before it believes that anything is safe;
a body it never reads.
"""

import re
import threading
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

# What is at most so long is kept: manifests, `.metadata`, probes.
SMALL = 256 * 1024
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_DATE = "2026-01-01T00:00:00.000Z"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")

Reply = tuple[int, bytes, str]


class Kept:
    """One bucket or several, from several threads; what it answers is status, body and further headers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[int, bytes | None]] = {}
        self._uploads: dict[str, int] = {}

    def answer(
        self, method: str, path: str, headers: dict[str, str], length: int, body: bytes | None
    ) -> Reply:
        """What S3 would say.

        Args:
            length: Of the request's body.
            body: None where it was thrown away.
        """
        parts = urlsplit(path)
        name, query = unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)
        with self._lock:
            if "list-type" in query:
                return self._list(name.strip("/"), query.get("prefix", [""])[0])
            if method == "POST":
                return self._upload(name, query)
            if "partNumber" in query:
                self._uploads[query["uploadId"][0]] += length
                return 200, b"", ""
            if method == "PUT":
                if "if-none-match" in headers and name in self._objects:
                    return 412, b"<Error><Code>PreconditionFailed</Code></Error>", ""
                self._objects[name] = length, body
                return 200, b"", ""
            if method == "DELETE":
                self._objects.pop(name, None)
                return 204, b"", ""
            return self._read(name, headers)

    def _upload(self, name: str, query: dict[str, list[str]]) -> Reply:
        if "uploads" in query:
            upload = f"u{len(self._uploads)}"
            self._uploads[upload] = 0
            names = f"<Bucket>b</Bucket><Key>k</Key><UploadId>{upload}</UploadId>"
            kind = "InitiateMultipartUploadResult"
        else:
            self._objects[name] = self._uploads[query["uploadId"][0]], None
            names = '<Location>l</Location><Bucket>b</Bucket><Key>k</Key><ETag>"e"</ETag>'
            kind = "CompleteMultipartUploadResult"
        return 200, f"{_XML}<{kind}>{names}</{kind}>".encode(), ""

    def _read(self, name: str, headers: dict[str, str]) -> Reply:
        nbytes, body = self._objects.get(name, (-1, None))
        if nbytes < 0:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", ""
        body = bytes(nbytes) if body is None else body
        if asked := _RANGE.fullmatch(headers.get("range", "")):
            first, last = int(asked[1]), min(int(asked[2]), nbytes - 1)
            return 206, body[first : last + 1], f"Content-Range: bytes {first}-{last}/{nbytes}\r\n"
        return 200, body, ""

    def _list(self, bucket: str, prefix: str) -> Reply:
        start = f"/{bucket}/"
        found = sorted(one for one in self._objects if one.startswith(start + prefix))
        contents = "".join(
            f"<Contents><Key>{escape(one.removeprefix(start))}</Key><LastModified>{_DATE}</LastModified>"
            f'<ETag>"e"</ETag><Size>{self._objects[one][0]}</Size></Contents>'
            for one in found
        )
        head = f"<Name>{bucket}</Name><KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>"
        return 200, f"{_XML}<ListBucketResult>{head}{contents}</ListBucketResult>".encode(), ""
