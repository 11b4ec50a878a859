"""Who this workload is: what `connect` was told, else what the launcher put in the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from evac.errors import ProtocolError
from evac.wire import Message, Mode, Register, decode, encode

DEFAULT_SOCKET = "/run/evac/evacd.sock"
# sockaddr_un.sun_path on Linux (unix(7), read 2026-01), the closing NUL included.
_SUN_PATH = 108

# In order: what a person set for evac, what torchrun sets, what srun sets.
_JOB = ("EVAC_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_NAME")
_RANK = ("EVAC_RANK", "RANK", "SLURM_PROCID")
_WORLD = ("EVAC_WORLD", "WORLD_SIZE", "SLURM_NTASKS")
_PRIORITY = ("EVAC_PRIORITY",)
# What the torchrun backend tells its workers.
_RENDEZVOUS = "EVAC_RENDEZVOUS"
# Where the job's nodes keep bytes for each other; `evac.store` reads it, too.
_PEERS = "EVAC_PEERS"
# No more fit on the wire; a job has use for a few.
_MOST_PEERS = 64
_RUN = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


@dataclass(frozen=True)
class Settings:
    """What a connection needs to know.

    Attributes:
        register: Sent after every hello.
        socket: Path of evacd's socket for workloads.
    """

    register: Register
    socket: str


def checked(message: Message) -> None:
    """Hold *message* against the ranges of the wire before it is sent.

    Raises:
        ValueError: Says which field is wrong and what it should be.
    """
    try:
        decode(encode(message))
    except (ProtocolError, TypeError, UnicodeError) as error:
        raise ValueError(str(error)) from error


def read_settings(
    environment: Mapping[str, str],
    *,
    job: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    priority: int | None = None,
    mode: Mode | str = Mode.STAGED,
    need_seconds: float = 0.0,
    run: str | None = None,
    socket: str | os.PathLike[str] | None = None,
) -> Settings:
    """Fill in from *environment* what was not given.

    Raises:
        ValueError: Something is missing or wrong; says what was expected.
    """
    if job is None:
        job = job_of(environment)
        if job is None:
            raise ValueError(f"job: expected a name; pass job= or set one of {', '.join(_JOB)}")
    if mode not in set(Mode):
        raise ValueError(f"mode: expected {' or '.join(Mode)}, got {mode!r}")
    if run is None:
        run = _word(environment, _RUN)
    register = Register(
        job=job,
        rank=_number(environment, _RANK, 0) if rank is None else rank,
        world=_number(environment, _WORLD, 1) if world is None else world,
        priority=_number(environment, _PRIORITY, 0) if priority is None else priority,
        mode=str(mode),
        run=run or "",
        need_seconds=need_seconds,
        rendezvous=environment.get(_RENDEZVOUS, ""),
        peers=tuple(
            one for part in environment.get(_PEERS, "").split(",") if (one := part.strip())
        )[:_MOST_PEERS],
    )
    checked(register)
    if mode == Mode.CALLBACK and not register.need_seconds > 0:
        raise ValueError(
            "need_seconds: expected above 0 in callback mode, got 0: how long your own flush takes, "
            "at most; a turn is planned by it, and one of 0 s is over before it begins"
        )
    if register.rank >= register.world:
        raise ValueError(
            f"rank: expected below world ({register.world}), got {register.rank}; "
            f"pass both, or set one of {', '.join(_RANK)} and one of {', '.join(_WORLD)}"
        )
    path = os.fspath(socket) if socket is not None else environment.get("EVAC_SOCKET")
    path = path or DEFAULT_SOCKET
    if not 0 < len(os.fsencode(path)) < _SUN_PATH:
        raise ValueError(f"socket: expected a path below {_SUN_PATH} bytes, got {path!r}")
    return Settings(register, path)


def job_of(environment: Mapping[str, str]) -> str | None:
    """The job that a person or a launcher named; None where nobody did."""
    return _word(environment, _JOB)


def _word(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = environment.get(name)
        # torchrun's own default run id: the same word for every job, so it names none.
        if value and not (name == "TORCHELASTIC_RUN_ID" and value == "none"):
            return value
    return None


def _number(environment: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        if value := environment.get(name):
            try:
                return int(value)
            except ValueError:
                raise ValueError(f"{name}: expected an integer, got {value!r}") from None
    return default
