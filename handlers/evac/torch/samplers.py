"""A data loader's samplers, by where they are."""

from typing import Any


def samplers(loader: Any) -> dict[str, Any]:
    """Those that *loader* has, each once, the nearest first."""
    batches = getattr(loader, "batch_sampler", None)
    parts = {
        "sampler": getattr(loader, "sampler", None),
        "batch_sampler": batches,
        "batch_sampler.sampler": getattr(batches, "sampler", None),
    }
    found: dict[str, Any] = {}
    for name, one in parts.items():
        if one is not None and not any(one is other for other in found.values()):
            found[name] = one
    return found
