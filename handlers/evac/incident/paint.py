"""Colour, and text that is safe to print."""

from typing import Protocol

_CODES = {
    "plain": "",
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
    "red": "\x1b[31m",
    "green": "\x1b[32m",
    "yellow": "\x1b[33m",
}


class Paint(Protocol):
    """Puts a text in colour, or leaves it."""

    def __call__(self, text: str, *shades: str) -> str:
        """*text* in *shades*; its printed width stays."""
        ...


def _plain(text: str, *shades: str) -> str:
    return text


def _ansi(text: str, *shades: str) -> str:
    codes = "".join(_CODES[shade] for shade in shades)
    return f"{codes}{text}\x1b[0m" if codes and text else text


PAINT: dict[bool, Paint] = {False: _plain, True: _ansi}


def clean(text: str) -> str:
    """*text* on one line, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def fitted(text: str, width: int) -> str:
    """*text* in at most *width* columns; what is cut shows as "…"."""
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"
