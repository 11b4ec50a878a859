"""The command `evacd`: run, check, simulate, install, uninstall."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from evac.errors import ConfigError, EvacError
from evac.store import is_durable
from evac.store.peer_wire import TOKEN_VARIABLE
from evacd.config import Config, explain, flags, load, unread

DEFAULT_FILE = Path("/etc/evac/evac.toml")
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

_ABOUT = """\
The node daemon of evac: hears that this machine is about to be taken away and gets the state
that its workloads have staged out of it, most important first, before the deadline."""

_EPILOG = """\
examples:
  evacd check --store file:///mnt/shared/checkpoints
  evacd run --store file:///mnt/shared/checkpoints
  evacd run --config /etc/evac/evac.toml --log-level debug
  evacd simulate gcp --help
  evacd install --dry-run

Settings come from one TOML file, then EVAC_* variables, then flags; the later wins.

exit codes:
  0  done
  1  a check failed, or the daemon could not start or go on (also: one is already running)
  2  wrong usage or configuration"""

_RUN = """\
Run the daemon until SIGTERM or Ctrl-C. It needs a store that outlives this machine."""

_CHECK = """\
Look whether evac would work here today: really write to, read from and delete in every store,
ask the metadata service, try sockets, directories and memory. Exits 1 if anything failed."""

_SIMULATE = """\
Serve a metadata service that gives notices as a cloud does, for drills and tests."""

_INSTALL = """\
Make evacd a service of systemd, run by this Python: write its unit, /etc/evac/evac.toml with every
setting explained, its group and folder, and how long logind lets a shutdown wait; then enable it.
A file that was changed by hand is kept. It starts with the next boot, or by systemctl start evacd."""

_UNINSTALL = """\
Stop the service and remove what `evacd install` wrote. A file that was changed by hand is kept."""

# What `evacd` needs beyond the standard library, by the name it is imported as.
_AGENT_MODULES = {"aiohttp", "crc32c", "prometheus_client", "psutil", "structlog"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        chosen = _parser(simulating=arguments[:1] == ["simulate"]).parse_args(arguments)
        return int(chosen.act(chosen, os.environ))
    except ConfigError as error:
        return _complain(str(error), USAGE)
    except EvacError as error:
        return _complain(str(error), FAILED)
    except ModuleNotFoundError as error:
        if error.name not in _AGENT_MODULES:
            raise
        return _complain(f"{error.name} is not installed; pip install 'evac[agent]'", FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; say nothing more at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _parser(*, simulating: bool) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "evacd", description=_ABOUT, epilog=_EPILOG, formatter_class=raw
    )
    parser.add_argument("--version", action="version", version=f"evacd {metadata.version('evac')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run the daemon", description=_RUN)
    check = commands.add_parser("check", help="would it work here, today?", description=_CHECK)
    check.add_argument("--json", action="store_true", help="findings and settings as JSON")
    for command, act in ((run, _run), (check, _check)):
        command.set_defaults(act=act)
        command.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help=f"TOML file (EVAC_CONFIG; default: {DEFAULT_FILE}, if it exists)",
        )
        flags.add_arguments(command)

    install = commands.add_parser("install", help="make it a service", description=_INSTALL)
    remove = commands.add_parser("uninstall", help="undo install", description=_UNINSTALL)
    install.set_defaults(act=_install)
    remove.set_defaults(act=_uninstall)
    for command in (install, remove):
        command.add_argument("--dry-run", action="store_true", help="only say what would be done")
        command.add_argument(
            "--root", type=Path, default=Path("/"), metavar="DIR",
            help="tree of a machine that does not run: an image",
        )  # fmt: skip

    simulate = commands.add_parser("simulate", help="play a cloud", description=_SIMULATE)
    simulate.set_defaults(act=_simulate)
    if simulating:
        # Its server costs an import that the daemon does not need.
        from evacd.notice.simulate import add_arguments

        add_arguments(simulate)
    return parser


def _run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    config = _load(arguments, environ)
    if not any(is_durable(url) for url in config.store.targets):
        peers = " (a peer's memory dies with the peer: good beside one, not instead)"
        raise ConfigError(
            config.origins.get("store.targets", "--store"),
            "store.targets",
            "a store that outlives this machine, such as file:///mnt/shared/checkpoints or "
            "EVAC_STORE; without one nothing can be saved: a local directory dies with the VM"
            + (peers if config.store.targets else ""),
        )
    import structlog

    from evacd import logs
    from evacd.daemon import run

    logs.configure(config.log)
    for one in unread(environ):
        structlog.get_logger().warning("variable.ignored", name=one.name, meant=one.meant)
    return run(config)


def _check(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from evacd.check import Finding, Report, Verdict, as_json, checks, examine, table
    from evacd.clock import SystemClock

    try:
        config = _load(arguments, environ)
    except ConfigError as error:
        report, rows = (
            Report((Finding("configuration", Verdict.FAIL, str(error), "correct it"),)),
            [],
        )
    else:
        try:
            report, rows = examine(checks(config, SystemClock(), environ)), explain(config)
        except KeyboardInterrupt:
            # What it waited for may hang, and Python would wait for that.
            os._exit(INTERRUPTED)
    sys.stdout.write(as_json(report, rows) if arguments.json else table(report.findings))
    sys.stdout.flush()
    code = OK if report.ok else FAILED
    if report.stuck:
        # Python would wait for the thread that hangs.
        os._exit(code)
    return code


def _install(arguments: argparse.Namespace, _: Mapping[str, str]) -> int:
    from evacd.install import install

    root = _tree(arguments)
    install(root, python=sys.executable, dry_run=arguments.dry_run, say=_say)
    if not arguments.dry_run:
        _say(
            f"next     name a store in {DEFAULT_FILE}, try it with `evacd check`, then "
            "systemctl restart evacd"
        )
    return OK


def _uninstall(arguments: argparse.Namespace, _: Mapping[str, str]) -> int:
    from evacd.install import uninstall

    uninstall(_tree(arguments), dry_run=arguments.dry_run, say=_say)
    return OK


def _tree(arguments: argparse.Namespace) -> Path:
    root: Path = arguments.root
    if not root.is_dir():
        raise ConfigError("--root", str(root), "a folder that is there: the tree of an image")
    return root.absolute()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _load(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    path: Path | None = arguments.config
    if path is None and environ.get("EVAC_CONFIG"):
        path = Path(environ["EVAC_CONFIG"])
    if path is None and DEFAULT_FILE.exists():
        path = DEFAULT_FILE
    config = load(path, environ, flags.given(arguments))
    if config.peer.token_file is not None:
        # Also for what opens other nodes' memory: stores read nothing of our settings.
        os.environ[TOKEN_VARIABLE] = str(config.peer.token_file)
    return config


def _simulate(arguments: argparse.Namespace, _: Mapping[str, str]) -> int:
    from evacd.notice.simulate import serve

    try:
        return asyncio.run(serve(arguments))
    except KeyboardInterrupt:
        return OK


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"evacd: {text}\n")
    return code
