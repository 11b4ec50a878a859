"""The metadata service, the cordon's program and the departure's webhook."""

import shutil
import stat

from evac.errors import EvacError
from evacd.check.findings import Finding, Verdict
from evacd.clock import Clock
from evacd.config import CordonConfig, DepartureConfig, NoticeConfig, without_secrets
from evacd.facts import Cancelled, Noticed, Probe, Quiet, Unknown

_NO_CLOUD = 'if this is no VM of that cloud: cloud = "none"'


async def check_metadata(config: NoticeConfig, clock: Clock) -> Finding:
    """The cloud's metadata service answers one question."""
    name = "metadata"
    if config.cloud == "none":
        detail = 'not asked: cloud = "none" hears operators only'
        return Finding(name, Verdict.OK, detail)
    where = f"{config.cloud} at {config.metadata_url}"
    try:
        answer = await _ask(config, clock)
    except EvacError as error:
        return Finding(name, Verdict.FAIL, str(error), "correct notice.metadata_url")
    match answer:
        case Quiet():
            return Finding(name, Verdict.OK, f"{where} answers: no notice")
        case Noticed(notice):
            detail = f"{where} answers: {notice.kind} {notice.detail}"
            return Finding(name, Verdict.WARN, detail, "this machine is about to go")
        case Cancelled():
            return Finding(name, Verdict.OK, f"{where} answers: a notice was cancelled")
        case Unknown(_, reason, cure):
            cure = "; ".join(part for part in (cure, _NO_CLOUD) if part)
            return Finding(name, Verdict.FAIL, f"{where}: {reason}", cure)


async def _ask(config: NoticeConfig, clock: Clock) -> Probe:
    from evacd.notice.gcp import GcpSource, gcp_client
    from evacd.notice.metadata import open_session

    async with open_session() as session:
        client = gcp_client(session, config.metadata_url, where="notice.metadata_url")
        source = GcpSource(client, clock, window_seconds=config.gcp_window_seconds)
        return await source.probe()


def check_cordon(config: CordonConfig) -> Finding:
    """The programs are there and may be run."""
    name = "cordon"
    if not config.command:
        return Finding(name, Verdict.OK, "none configured: new work may still land here")
    for command in (config.command, config.undo_command):
        if command and shutil.which(command[0]) is None:
            detail = f"{command[0]}: no such program, or not executable"
            return Finding(name, Verdict.FAIL, detail, "give its absolute path, and chmod +x it")
    if not config.undo_command:
        cure = "give --cordon-undo-command"
        return Finding(name, Verdict.WARN, "a cancelled notice leaves the node cordoned", cure)
    return Finding(name, Verdict.OK, f"{config.command[0]}, undone by {config.undo_command[0]}")


def check_departure(config: DepartureConfig) -> Finding:
    """The webhook's secret can be read by the daemon, and by nobody else."""
    name = "departure"
    if not config.webhook_url:
        return Finding(name, Verdict.OK, "none configured: nobody is told")
    url, secret = without_secrets(config.webhook_url), config.secret_file
    if secret is None:
        return Finding(name, Verdict.OK, f"{url}, unsigned")
    try:
        empty = not secret.read_bytes().strip()
        mode = secret.stat().st_mode
    except OSError as error:
        detail = f"{secret}: {error.strerror or error}"
        return Finding(name, Verdict.FAIL, detail, "make it readable for the daemon alone")
    if empty:
        return Finding(name, Verdict.FAIL, f"{secret}: empty", "put the shared secret in it")
    if mode & stat.S_IROTH:
        return Finding(name, Verdict.WARN, f"{secret}: anybody may read it", f"chmod o= {secret}")
    return Finding(name, Verdict.OK, f"{url}, signed")
