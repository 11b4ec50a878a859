"""Which cloud this is, and every notice source that would run: each is asked once."""

import asyncio
from asyncio import TaskGroup
from contextlib import AsyncExitStack
from pathlib import Path

from evac.errors import EvacError
from evacd.check.findings import Finding, Verdict
from evacd.clock import Clock
from evacd.config import Config
from evacd.facts import Cancelled, Noticed, Probe, Quiet, Unknown
from evacd.listening import Found, find, independent, of_cloud
from evacd.notice import Source
from evacd.notice.detect import DMI

# Azure's first call may take long; the daemon is more patient with it than a person is.
SECONDS = 8.0
_NO_CLOUD = 'if this is no VM of that cloud: cloud = "none"'


async def check_sources(
    config: Config, clock: Clock, *, dmi: Path = DMI, seconds: float = SECONDS
) -> tuple[Finding, ...]:
    """One finding for the cloud, one for each source.

    Args:
        dmi: Where the firmware's strings are.
        seconds: That each source may take; they are asked side by side.
    """
    async with AsyncExitStack() as opened:
        try:
            alone = await independent(config, clock, opened)
            found = await find(config, dmi=dmi)
            of_it = await of_cloud(config, found.cloud, clock, opened)
        except EvacError as error:
            return (Finding("sources", Verdict.FAIL, str(error), "correct the setting"),)
        findings = dict.fromkeys([source.name for source in (*of_it, *alone)], _LATE)

        async def ask(source: Source) -> None:
            try:
                async with asyncio.timeout(seconds):
                    probe = await source.probe()
            except TimeoutError:
                probe = Unknown(source.name, f"no answer within {seconds:g} s", "ask again")
            except Exception as error:  # noqa: BLE001 - a bug in one must not hide the others
                reason = f"its code failed: {error!r}"[:200]
                probe = Unknown(source.name, reason, "please report this bug in evac")
            findings[source.name] = _finding(source.name, probe, is_cloud=source in of_it)

        async with TaskGroup() as tasks:
            for source in (*of_it, *alone):
                tasks.create_task(ask(source))
    return (_cloud(found, heard=bool(findings)), *findings.values())


_LATE = Finding("", Verdict.FAIL, "not asked")


def _cloud(found: Found, *, heard: bool) -> Finding:
    if found.cloud:
        return Finding("cloud", Verdict.OK, f"{found.cloud} ({found.how})")
    if not found.cure:
        what = "" if heard else ": operators only"
        return Finding("cloud", Verdict.OK, f"{found.how}{what}")
    what = "other sources are heard" if heard else "nothing is heard"
    verdict = Verdict.WARN if heard else Verdict.FAIL
    return Finding("cloud", verdict, f"not known, {what}: {found.how}", found.cure)


def _finding(name: str, probe: Probe, *, is_cloud: bool) -> Finding:
    match probe:
        case Quiet():
            return Finding(name, Verdict.OK, "answers: no notice")
        case Cancelled():
            return Finding(name, Verdict.OK, "answers: a notice was cancelled")
        case Noticed(notice):
            detail = f"answers: {notice.kind}, {notice.confidence.word}: {notice.detail}"
            return Finding(name, Verdict.WARN, detail, "this machine is about to go")
        case Unknown(_, reason, cure):
            parts = (cure, _NO_CLOUD if is_cloud else "")
            return Finding(name, Verdict.FAIL, reason, "; ".join(filter(None, parts)))
