"""Slots registered with CUDA, so that a device writes to them by itself, at its link's speed.

To memory that is only mapped, the driver copies through a buffer of its own, and the thread that
asked waits: a fraction of the speed, and nothing beside it. Registering locks every page, which takes
a second for some GiB; so it happens in a thread, and until it is done a stage copies as it can.

The thread has another reason: CUDA keeps a thread's last error, and torch would find that of a
registration that failed behind its own next kernel.
"""

import logging
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

import torch

from evac._memory import Mapping

log = logging.getLogger("evac")

# cudaHostRegisterPortable: for all devices of this process.
_PORTABLE = 1


class Registry(Protocol):
    """What registers memory. Raises RuntimeError where it cannot."""

    def register(self, device: torch.device, address: int, nbytes: int) -> None:
        """Lock it for *device*'s process; blocks for as long as that takes."""
        ...

    def unregister(self, device: torch.device, address: int) -> None:
        """The counterpart."""
        ...


class Cuda:
    """The CUDA runtime, as torch has it."""

    def register(self, device: torch.device, address: int, nbytes: int) -> None:
        """See `Registry.register`."""
        # Else this thread would open a context on the first device: hundreds of MiB, of each rank.
        torch.cuda.set_device(device)
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE))  # type: ignore[no-untyped-call] # torch has no types here

    def unregister(self, device: torch.device, address: int) -> None:
        """See `Registry.unregister`."""
        torch.cuda.set_device(device)
        torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call] # torch has no types here


class Pin:
    """One slot's memory, registered for as long as this is held and not closed.

    Args:
        memory: All of the slot; kept until it is registered no more, for who unmaps it before leaves
            its pages locked.
        device: Any that will write to it.
    """

    def __init__(
        self, memory: memoryview, device: torch.device, registry: Registry | None = None
    ) -> None:
        self._state = state = _State(memory, device, registry or Cuda())
        self._thread = threading.Thread(target=state.register, name="evac pin", daemon=True)
        self._end = weakref.finalize(self, _let_go, state)
        # At the interpreter's end the process gives all of it back, and CUDA may be gone by then.
        self._end.atexit = False
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether it is registered by now."""
        return self._state.registered

    def settle(self, timeout: float) -> bool:
        """Wait at most *timeout* seconds for the answer; whether it is registered."""
        self._thread.join(timeout)
        return self.ready

    def close(self) -> None:
        """Register it no more; waits while it is being registered."""
        self._thread.join()
        self._end()


class _State:
    def __init__(self, memory: memoryview, device: torch.device, registry: Registry) -> None:
        assert isinstance(memory.obj, Mapping)
        self.memory: memoryview | None = memory
        self.registered = False
        self._address = memory.obj.address
        self._device = device
        self._registry = registry
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def register(self) -> None:
        with self._lock:
            if self.memory is None:
                return
            try:
                self._registry.register(self._device, self._address, self.memory.nbytes)
            except RuntimeError as error:
                log.warning(
                    "a slot of %s bytes is not pinned, staging from %s is slower: %s",
                    f"{self.memory.nbytes:,}", self._device, error,
                )  # fmt: skip
                return
            self.registered = True

    def unregister(self) -> None:
        with self._lock:
            # In a forked child neither the memory nor CUDA is there.
            if self.registered and os.getpid() == self._pid:
                try:
                    self._registry.unregister(self._device, self._address)
                except RuntimeError as error:
                    log.debug("a slot stays registered: %s", error)
            self.registered, self.memory = False, None


def _let_go(state: _State) -> None:
    """Not on whichever thread collects garbage: its last CUDA error is torch's."""
    thread = threading.Thread(target=state.unregister, name="evac unpin", daemon=True)
    thread.start()
    thread.join()


def pinned(memory: memoryview, sources: Sequence[torch.Tensor]) -> Pin | None:
    """*memory* registered for the device that some of *sources* are on; None on a machine without."""
    device = next((one.device for one in sources if one.device.type == "cuda"), None)
    return None if device is None else Pin(memory, device)
