"""Notices that users supply: by a file, a program, or a server of theirs; see `SCHEMA.md`."""

from evacd.notice.user.exec import ExecSource
from evacd.notice.user.file import FileSource
from evacd.notice.user.http import HttpSource
from evacd.notice.user.schema import UserNotice, Wrong, parse

__all__ = ["ExecSource", "FileSource", "HttpSource", "UserNotice", "Wrong", "parse"]
