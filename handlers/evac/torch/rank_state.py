"""What is one rank's own: RNG, data loader, schedule, the rest of extra objects, as one block of bytes.

DCP keeps one copy of equal keys, whichever rank it came from: saved under one name, rank 1
would wake up with rank 0's random numbers. So all of it lies in one tensor per rank,
``evac.rank<r>``, of fixed capacity so that it may grow: 8 bytes of length, then `torch.save`. Where it
has outgrown that: 8 zeros, offset in its file and length of what fits no more, and then what fits.
"""

import io
import logging
import random
import re
import struct
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn.parallel import DistributedDataParallel

from evac._clock import monotonic, wall
from evac.segment import aligned
from evac.torch import generators
from evac.torch.extra import Tensors, fill, lift, likenesses
from evac.torch.generators import Registered
from evac.torch.loader_place import Dealt, adopted, dealt, is_loader, placed
from evac.torch.pace import History, Pace
from evac.torch.progress import Progress

log = logging.getLogger("evac")

_LENGTH = struct.Struct("<Q")
_BEYOND = struct.Struct("<QQQ")
_LEAST = 64 * 1024
_NAME = re.compile(r"evac\.rank\d+")


@runtime_checkable
class Stateful(Protocol):
    """Anything that can say where it stands, and go back there."""

    def state_dict(self) -> Any:
        """Where it stands."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Go back there."""
        ...


def check(given: Mapping[str, Any]) -> None:
    """Now, and not at each stage: a loader that cannot say where it stands is often a plain one.

    Raises:
        ValueError: One of them is not `Stateful`; says which.
    """
    for key, one in given.items():
        if not isinstance(one, Stateful):
            hint = "; evac.torch.Resumable(loader) has both" if key == "loader" else ""
            text = f"{key}: expected state_dict and load_state_dict, got {type(one).__name__}"
            raise ValueError(text + hint)


def name(rank: int) -> str:
    """The key of one rank's block in the checkpoint."""
    return f"evac.rank{rank}"


def is_name(key: str) -> bool:
    """Whether *key* is that of any rank's block."""
    return _NAME.fullmatch(key) is not None


def capacity(nbytes: int) -> int:
    """How much to set aside for a block that is *nbytes* long at planning."""
    # Half as much again: what is large and changes is a loader's buffer; who outgrows it plans anew.
    return max(_LEAST, aligned(nbytes + nbytes // 2))


def fitted(block: bytes, nbytes: int, put: Callable[[bytes], int | None]) -> bytes | None:
    """What of *block* goes into a place of *nbytes*; None where it neither fits nor can be put elsewhere.

    Args:
        put: Puts what is left over elsewhere; at which offset of its file, or None.
    """
    if len(block) <= nbytes:
        return block
    at = _LENGTH.size + nbytes - _BEYOND.size
    offset = put(block[at:])
    if offset is None:
        return None
    return _BEYOND.pack(0, offset, len(block) - at) + block[_LENGTH.size : at]


def beyond(place: memoryview) -> tuple[int, int] | None:
    """Where what was left over of a block lies, offset in its file and length; None for nothing.

    Args:
        place: All of the block's own.
    """
    if place.nbytes < _BEYOND.size:
        return None
    length, offset, nbytes = _BEYOND.unpack_from(place)
    return None if length or not nbytes else (offset, nbytes)


@dataclass(frozen=True)
class Packed:
    """A rank's own state at one moment.

    Attributes:
        block: All of it but *tensors*.
        tensors: Of extra objects, see `evac.torch.extra`; shared with them, not copied.
    """

    block: bytes
    tensors: Tensors


@dataclass(frozen=True)
class RankObjects:
    """The objects of this rank's training loop that have a state of their own.

    Attributes:
        elastic_loader: Its place is the job's: right on any rank, in any world.
    """

    scheduler: Stateful | None
    loader: Stateful | None
    extra: Mapping[str, Stateful]
    pace: Pace | None = None
    generators: Registered = field(default_factory=dict)
    elastic_loader: bool = False
    model: torch.nn.Module | None = None
    progress: Progress | None = None

    @property
    def loaders(self) -> dict[str, Any]:
        """The data loader, and those among the extra objects; by how they were given."""
        more = {f"extra[{key!r}]": one for key, one in self.extra.items() if is_loader(one)}
        return {"loader": self.loader, **more} if self.loader is not None else more

    @property
    def others(self) -> dict[str, Stateful]:
        """The extra objects that are no loader: the tensors of a loader's state come and go."""
        return {key: one for key, one in self.extra.items() if not is_loader(one)}

    def likenesses(self, names: Collection[str]) -> Tensors:
        """How the tensors of extra objects are spread now, where they are among *names*."""
        return {key: likenesses(one) for key, one in self.extra.items() if key in names}

    def put_back(self, document: Mapping[str, Any], tensors: Tensors) -> None:
        """Put *tensors*, as restored, into *document* where `pack` took them out.

        Raises:
            KeyError: One is not there.
        """
        for key in document["extra"].keys() & self.extra.keys():
            document["extra"][key] = fill(document["extra"][key], tensors.get(key, {}))

    def pack(self, *, step: int, rank: int, world: int) -> Packed:
        """All of their state now, and the RNG's."""
        lifted = {key: lift(one.state_dict()) for key, one in self.others.items()}
        loaders = {key: one for key, one in self.extra.items() if key not in lifted}
        document = {
            "step": step,
            "rank": rank,
            "world": world,
            "shares": dealt(self.loader, world).shares,
            "shares of extra": {key: dealt(one, world).shares for key, one in loaders.items()},
            "rng": read_rng(),
            "generators": generators.read(self.generators),
            "syncs": {name: one.require_forward_param_sync for name, one in self._wrappers()},
            "history": self.pace.remember(now=monotonic(), wall=wall()) if self.pace else None,
            "progress": self.progress.read() if self.progress is not None else None,
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "loader": self.loader.state_dict() if self.loader is not None else None,
            "extra": {
                **{key: emptied for key, (emptied, _) in lifted.items()},
                **{key: one.state_dict() for key, one in loaders.items()},
            },
        }
        stream = io.BytesIO()
        stream.write(_LENGTH.pack(0))
        torch.save(document, stream)
        stream.seek(0)
        stream.write(_LENGTH.pack(stream.getbuffer().nbytes - _LENGTH.size))
        return Packed(stream.getvalue(), {key: taken for key, (_, taken) in lifted.items()})

    def load(self, document: Mapping[str, Any], *, own: bool, rank: int, world: int) -> list[str]:
        """Go back to *document*; the RNG is left for `load_rng`.

        Args:
            own: This rank wrote it; else only what all ranks share is taken.
            rank: Of this one.
            world: How many there are now.

        Returns:
            What starts afresh because *document* does not hold it.
        """
        afresh: list[str] = []
        if self.pace is not None:
            self.pace.history = History.read(document.get("history")).resumed(now=wall())
        if self.progress is not None and document.get("progress"):
            self.progress.put_back(document["progress"])
        if self.scheduler is not None:
            if document["scheduler"] is None:
                afresh.append("the LR schedule")
            else:
                self.scheduler.load_state_dict(document["scheduler"])
        place = _Place(own, rank, document["world"], world, as_it_is=self.elastic_loader)
        shares = document.get("shares of extra", {})
        for key, one in self.extra.items():
            if key not in document["extra"]:
                afresh.append(f"extra[{key!r}]")
            elif is_loader(one):
                remark = place.load(one, document["extra"][key], shares.get(key))
                _tell(remark and f"extra[{key!r}]: {remark}", rank)
            else:
                one.load_state_dict(document["extra"][key])
        if self.loader is not None:
            if document["loader"] is None:
                afresh.append("the data loader")
            else:
                _tell(place.load(self.loader, document["loader"], document.get("shares")), rank)
        syncs = document.get("syncs", {}) if own else {}
        for key, wrapper in self._wrappers():
            wrapper.require_forward_param_sync = syncs.get(key, True)
        states = document.get("generators", {}) if own else {}
        afresh += generators.put_back(self.generators, states)
        if not own:
            afresh.append("its random numbers")
        return afresh

    def _wrappers(self) -> Iterator[tuple[str, DistributedDataParallel]]:
        # Whether DDP's next forward shares rank 0's buffers depends on its last one, which may have been
        # an evaluation without gradients.
        for key, module in self.model.named_modules() if self.model is not None else ():
            if isinstance(module, DistributedDataParallel):
                yield key, module


@dataclass(frozen=True)
class _Place:
    """Where loaders go on.

    Attributes:
        own: This rank wrote their states.
        was: How many ranks there were.
        now: How many there are.
        as_it_is: It is the job's, and not a rank's.
    """

    own: bool
    rank: int
    was: int
    now: int
    as_it_is: bool

    def load(self, loader: Stateful, state: Any, shares: int | None) -> str:
        """Load *state*; what a person should know, or "".

        Args:
            shares: See `Dealt`, when it was saved.
        """
        remark = ""
        if not self.as_it_is:
            was, now = Dealt(self.was, shares), dealt(loader, self.now)
            state, remark = placed(state, own=self.own, was=was, now=now)
            if not self.own:
                seed = int(torch.empty((), dtype=torch.int64).random_())
                state = adopted(state, seed)
        if state is not None:
            loader.load_state_dict(state)
        return remark


def _tell(remark: str, rank: int) -> None:
    if remark and rank == 0:
        log.warning("%s", remark)


def unpack(block: torch.Tensor, rest: bytes | memoryview = b"") -> dict[str, Any]:
    """Read a block.

    Args:
        rest: What lies `beyond` it.

    Raises:
        ValueError: Not one; or whatever unpickling raises.
    """
    data = block.numpy().tobytes()
    (length,) = _LENGTH.unpack_from(data)
    if rest:
        stream = io.BytesIO(data[_BEYOND.size :])
        stream.seek(0, io.SEEK_END)
        stream.write(rest)
        stream.seek(0)
    elif not 0 < length <= len(data) - _LENGTH.size:
        raise ValueError(f"length {length} in a block of {len(data)} bytes")
    else:
        stream = io.BytesIO(data[_LENGTH.size : _LENGTH.size + length])
    # A loader's state may be any Python object; these are the job's own files.
    document: Any = torch.load(stream, weights_only=False, map_location="cpu")
    if not isinstance(document, dict) or "rng" not in document:
        raise ValueError("it is no rank's state")
    return document


def load_rng(rng: Mapping[str, Any]) -> None:
    """Put every generator back; the last act of a restore."""
    random.setstate(rng["python"])
    if rng["numpy"] is not None:
        import numpy as np

        np.random.set_state(rng["numpy"])
    torch.set_rng_state(rng["torch"])
    if rng["cuda"] and torch.cuda.is_available():
        if len(rng["cuda"]) != torch.cuda.device_count():
            text = f"{len(rng['cuda'])} CUDA generators were saved, {torch.cuda.device_count()} devices are here"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        for device, state in enumerate(rng["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)


def read_rng() -> dict[str, Any]:
    """Where every generator stands, for `load_rng`."""
    # Where nobody has imported numpy, nobody draws from its global generator.
    numpy = sys.modules.get("numpy")
    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state() if numpy is not None else None,
        "torch": torch.get_rng_state(),
        "cuda": _cuda(),
    }


def _cuda() -> list[torch.Tensor]:
    # Asking would start CUDA where nobody uses it.
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch has no types here
    return torch.cuda.get_rng_state_all() if started else []
