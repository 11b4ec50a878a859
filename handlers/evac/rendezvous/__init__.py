"""The torchrun backend ``--rdzv-backend=evac``: survivors of a departure train on at once.

torch calls `handler_factory` in every process that imports its elastic package (entry point
group ``torchrun.handlers``), so that nothing is loaded here before torchrun asks for a handler.

The parts: `events` says what nodes tell each other, `state` what is known by then, `rounds` what follows,
`services` where that counts, `ending` when the job is over (all pure); `keys` is what a store must be able to
do, `torch_keys` and `etcd_keys` are two of them; `follower` keeps up with the store, by a `reader` and a `writer`
that share a `view`; `handler` is what torchrun's agent calls, and `parting` how it goes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

BACKEND = "evac"


def handler_factory() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """What torch's registry calls once; what it returns makes the handler."""
    return _create


def _create(parameters: "RendezvousParameters") -> "RendezvousHandler":
    from evac.rendezvous.handler import create

    return create(parameters)
