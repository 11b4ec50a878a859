"""What a check found, and how people and programs are told."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from evacd.config import Row


class Verdict(StrEnum):
    """How it stands. A warning costs nothing today and does not fail the check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        name: What was looked at: ``store``.
        detail: What was seen.
        cure: What a person can do; "" where nothing has to be done.
    """

    name: str
    verdict: Verdict
    detail: str
    cure: str = ""


@dataclass(frozen=True)
class Report:
    """All findings.

    Attributes:
        stuck: A check did not end in its time and still runs; nobody should wait for it.
    """

    findings: tuple[Finding, ...]
    stuck: bool = False

    @property
    def ok(self) -> bool:
        """Nothing failed."""
        return all(one.verdict is not Verdict.FAIL for one in self.findings)


def table(findings: Sequence[Finding]) -> str:
    """One line per finding: verdict, name, what was seen, what to do."""
    width = max((len(one.name) for one in findings), default=0)
    return "".join(
        f"{_LABELS[one.verdict]:<4}  {one.name:<{width}}  {_one_line(one)}\n" for one in findings
    )


def as_json(report: Report, rows: Iterable[Row]) -> str:
    """``{"ok", "findings": [...], "config": [...]}``."""
    document = {
        "ok": report.ok,
        "findings": [dataclasses.asdict(one) for one in report.findings],
        "config": [dataclasses.asdict(row) for row in rows],
    }
    return json.dumps(document, indent=2) + "\n"


# A failure has to be seen in a long table.
_LABELS = {Verdict.OK: "ok", Verdict.WARN: "warn", Verdict.FAIL: "FAIL"}


def _one_line(finding: Finding) -> str:
    text = f"{finding.detail} -> {finding.cure}" if finding.cure else finding.detail
    return " ".join(text.split())
