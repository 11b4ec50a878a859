"""What a flush gets of a held generation: one rank's share, ready to be written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evac.generation import Generation
from evac.store import Owner
from evacd.workloads.checksums import Sums


@dataclass(frozen=True, eq=False)
class Part:
    """One rank's share of a held generation; valid while it is held.

    Attributes:
        unit: ``<owner>/<job>``, and so is `prefix`: where it goes in each store.
        owner: Whose files they become.
        body: File name of the body.
        data: The body: read-only, page-aligned, in the workload's own memory, which may
            still write there. Trust `checksums`, not these bytes.
        items: What the body holds; for the manifest.
        metadata: Bytes of DCP's `.metadata`; empty where the body is no DCP file.
    """

    unit: str
    job: str
    run: str
    generation: Generation
    rank: int
    world: int
    prefix: str
    owner: Owner
    body: str
    layout: str
    data: memoryview
    items: tuple[Mapping[str, object], ...]
    metadata: bytes
    sums: Sums = field(repr=False)

    async def checksums(self) -> tuple[int, ...]:
        """CRC-32C of each 4 MiB of `data`, as it was soon after staging.

        What is not summed yet is summed in a thread; the answer is complete.
        """
        return await self.sums.all()
