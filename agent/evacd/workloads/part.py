"""What a flush gets of a held generation: one rank's share, ready to be written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evac.generation import Generation
from evac.segment import BodyFile
from evac.store import Owner
from evacd.workloads.checksums import Sums


@dataclass(frozen=True, eq=False)
class Part:
    """One rank's share of a held generation; valid while it is held.

    Attributes:
        unit: ``<owner>/<job>``, and so is `prefix`: where it goes in each store.
        owner: Whose files they become.
        body: Its file name, where it is one file.
        data: The body: read-only, page-aligned, in the workload's own memory, which may
            still write there. Trust `checksums`, not these bytes.
        items: What the body holds; for the manifest.
        metadata: Bytes of DCP's `.metadata`; empty where the body is no DCP file.
        parts: The files that the body consists of, where the workload named some.
        weights_metadata: Those of the `.metadata` of the weights alone; empty where they do not
            lie apart.
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
    parts: tuple[BodyFile, ...] = ()
    weights_metadata: bytes = b""

    @property
    def files(self) -> tuple[BodyFile, ...]:
        """What the body consists of."""
        return self.parts or (BodyFile(self.body, 0, self.data.nbytes),)

    async def checksums(self, file: int = 0) -> tuple[int, ...]:
        """CRC-32C of each 4 MiB of one of `files`, by its place, as it was soon after staging.

        What is not summed yet is summed in a thread; the answer is complete.
        """
        return await (self.sums.of(file) if self.parts else self.sums.all())
