"""Logs: events on stderr, lines of JSON for machines, columns for a person at a terminal.

Whoever logs never waits for who reads (`evacd.outlet`).

The standard library's records (`evac` and the libraries below us) take the same path.
"""

import json
import logging
import sys
from collections.abc import Callable
from typing import TextIO, cast

import structlog
from structlog.typing import Processor

from evacd.config import LogConfig
from evacd.outlet import Outlet


def configure(config: LogConfig, stream: TextIO | None = None) -> None:
    """Send all logs of this process to *stream* (stderr), once, at its start."""
    stream = stream or sys.stderr
    colors = stream.isatty()
    console = config.format == "console" or (config.format == "auto" and colors)
    stream = cast(TextIO, Outlet(stream.fileno(), _lost(console=console)))
    level = logging.getLevelNamesMapping()[config.level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last = _for_people(colors=colors) if console else _for_machines()
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)


def _lost(*, console: bool) -> Callable[[int], str]:
    def line(number: int) -> str:
        if console:
            return f"[warning  ] log.lost                       lines={number}\n"
        return json.dumps({"event": "log.lost", "level": "warning", "lines": number}) + "\n"

    return line


# Tracebacks never show local variables: they hold credentials and whole buffers.


def _for_people(*, colors: bool) -> list[Processor]:
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]


def _for_machines() -> list[Processor]:
    bare = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(bare), structlog.processors.JSONRenderer()]
