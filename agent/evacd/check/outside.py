"""The cordon's program and the departure's webhook."""

import os
import stat

from evacd.check.findings import Finding, Verdict
from evacd.config import CordonConfig, DepartureConfig, without_secrets
from evacd.trust import Doubt, program_of


def check_cordon(config: CordonConfig) -> Finding:
    """The programs are there, may be run, and are in safe hands."""
    name = "cordon"
    if not config.command:
        return Finding(name, Verdict.OK, "none configured: new work may still land here")
    for command in (config.command, config.undo_command):
        try:
            program = program_of(command, os.environ) if command else ""
        except (OSError, ValueError) as error:
            program = Doubt(getattr(error, "strerror", None) or str(error), "correct its path")
        if isinstance(program, Doubt):
            return Finding(name, Verdict.FAIL, f"{command[0]}: {program.reason}", program.cure)
        if program is None:
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
