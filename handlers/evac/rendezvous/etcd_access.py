"""What an etcd is shown, and by what it is known: files that are read anew for each connection and login.

Certificates and passwords are renewed while a job runs for weeks. What is wrong with them is said in the words
of whoever has to put it right; no message has what is in a file.
"""

import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from evac.rendezvous.etcd_login import Login, Ticket

logger = logging.getLogger("evac")


@dataclass(frozen=True)
class EtcdFiles:
    """Paths, and a user's name; "" for none.

    Attributes:
        ca: Certificates of those who may vouch for etcd; "" for those of this machine.
        cert: Our own certificate, where etcd wants one, with its `key`.
        password: Its first line is the password of `user`.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: str = ""


NO_FILES = EtcdFiles()


@dataclass(frozen=True)
class Shown:
    """For one connection.

    Attributes:
        context: None where the connection is plain.
    """

    context: ssl.SSLContext | None
    login: Login


@dataclass
class Access:
    """To one etcd: its files, the token that it gave last, and what was made of the files.

    Attributes:
        wrong: What is wrong with the files as they are now, where what they held before is shown yet; else "".
    """

    files: EtcdFiles = NO_FILES
    wrong: str = field(default="", init=False)
    _ticket: Ticket = field(default_factory=Ticket, repr=False)
    _made: tuple[list[bytes], ssl.SSLContext] | None = field(default=None, repr=False)
    # With TLS and without.
    _good: dict[bool, Shown] = field(default_factory=dict[bool, Shown], repr=False)

    def read(self, *, tls: bool) -> Shown:
        """What to show it now; what was right before where a file is wrong.

        Whoever renews them writes one after the other: a new certificate lies beside the old key for a moment.

        Raises:
            ValueError: A file is wrong, and they were never right; says which, and how.
        """
        wrong = ""
        try:
            self._good[tls] = self._read(tls=tls)
        except ValueError as error:
            if tls not in self._good:
                raise
            wrong = str(error)
        if wrong and wrong != self.wrong:
            logger.warning("etcd is shown what was right before: %s", wrong)
        self.wrong = wrong
        return self._good[tls]

    def _read(self, *, tls: bool) -> Shown:
        files, password = self.files, ""
        if files.user:
            password = _read(files.password).decode(errors="replace").split("\n")[0].rstrip("\r")
            if not password:
                raise ValueError(f"{files.password}: holds no password")
        context = self._context() if tls else None
        return Shown(context, Login(files.user, password, self._ticket))

    def _context(self) -> ssl.SSLContext:
        files = self.files
        texts = [_read(path) for path in (files.ca, files.cert, files.key) if path]
        # A context of its own for each would let no connection be used again.
        if self._made is None or self._made[0] != texts:
            self._made = texts, _made(files, texts[0] if files.ca else b"")
        return self._made[1]


def refusal_of(error: BaseException | None) -> str:
    """Why there can be no TLS, where another try cannot help; "" where it is anything else."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted: {error.verify_message or error.reason}"
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if reason.endswith("_ALERT_INTERNAL_ERROR"):
        # It has no certificate to show just now: its own is being renewed, one file after the other.
        return ""
    if "_ALERT_" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return "it wants a client certificate, and not this one"
    if "_ALERT_" in reason:
        return f"it breaks off the TLS handshake: {reason.partition('_ALERT_')[2].lower()}"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "it does not speak TLS"
    return ""


def _made(files: EtcdFiles, ca: bytes) -> ssl.SSLContext:
    try:
        if files.ca and not ca.strip():
            raise ValueError("empty, for which Python would take the machine's own")
        context = ssl.create_default_context(cadata=ca.decode("ascii") if files.ca else None)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"{files.ca}: holds no certificates") from error
    if files.cert:
        try:
            # Without a password of ours OpenSSL would ask the terminal for one.
            context.load_cert_chain(files.cert, files.key, password="")
        except (ssl.SSLError, OSError, ValueError) as error:
            wrong = f"{files.cert}, {files.key}: no certificate and its key, without a passphrase"
            raise ValueError(wrong) from error
    return context


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
