"""Who stages what: all that several ranks hold, once per node, and which file it goes into. Pure.

DCP writes what several ranks hold once for the whole job: on the rank that it elects, and its
`.metadata` names that rank's file. With that rank's node it would be gone from memory. So on every
other node that holds the same, one rank stages a copy of that file, byte for byte and by its name: what
reads out of a node's memory finds there what another node was to write. Copies are never flushed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from evac.generation import WEIGHTS
from evac.manifest import COPY, REST
from evac.segment import MOST_FILES

# Of one rank and kind; what is held in yet another way is staged once for the job.
_MOST_GROUPS = 64


@dataclass(frozen=True)
class Batch:
    """What goes into one file.

    Attributes:
        name: In the generation's folder.
        kind: ``weights``, ``rest`` or ``copy``.
        held: Other nodes hold all of it, too.
        items: In their order there.
    """

    name: str
    kind: str
    held: bool
    items: tuple[WriteItem, ...]


def batches(
    rank: int,
    nodes: Sequence[str],
    proposals: Sequence[SavePlan],
    plans: Sequence[SavePlan],
    of_model: Set[str],
) -> list[Batch]:
    """What *rank* stages: its own weights, then the rest, then copies.

    Args:
        nodes: Where each rank is.
        proposals: What each rank holds.
        plans: What each rank was elected for.
        of_model: Keys of weights.
    """
    mine = {item.index: item for item in proposals[rank].items}
    own: list[Batch] = []
    copies: list[Batch] = []
    load: Counter[int] = Counter()
    holders = _holders(proposals)
    for elected, plan in enumerate(plans):
        for batch, ranks in _files(elected, plan, nodes, holders, of_model):
            if elected == rank:
                own.append(batch)
            for holder in _copiers(nodes[elected], nodes, ranks, load):
                load[holder] += sum(map(_nbytes, batch.items))
                if holder == rank:
                    items = tuple(mine[item.index] for item in batch.items)
                    copies.append(Batch(batch.name, COPY, True, items))
    # What nobody else holds goes first.
    own.sort(key=lambda batch: (batch.kind != WEIGHTS, batch.held))
    return [*own, *copies[: MOST_FILES - len(own)]]


def _holders(proposals: Sequence[SavePlan]) -> Mapping[MetadataIndex, tuple[int, ...]]:
    found: dict[MetadataIndex, list[int]] = {}
    for rank, plan in enumerate(proposals):
        for item in plan.items:
            found.setdefault(item.index, []).append(rank)
    return {index: tuple(ranks) for index, ranks in found.items()}


def _files(
    elected: int,
    plan: SavePlan,
    nodes: Sequence[str],
    holders: Mapping[MetadataIndex, tuple[int, ...]],
    of_model: Set[str],
) -> Iterator[tuple[Batch, tuple[int, ...]]]:
    """One rank's files, and who else could stage all of each."""
    grouped: dict[tuple[str, tuple[int, ...]], list[WriteItem]] = {}
    numbers: dict[str, list[tuple[int, ...]]] = {WEIGHTS: [()], REST: [()]}
    for item in plan.items:
        kind = WEIGHTS if item.index.fqn in of_model else REST
        ranks = holders[item.index]
        if len({nodes[one] for one in ranks}) == 1 or (
            ranks not in numbers[kind] and len(numbers[kind]) > _MOST_GROUPS
        ):
            ranks = ()
        if ranks not in numbers[kind]:
            numbers[kind].append(ranks)
        grouped.setdefault((kind, ranks), []).append(item)
    for (kind, ranks), items in grouped.items():
        name = f"__{elected}_{numbers[kind].index(ranks)}.distcp"
        name = f"{WEIGHTS}/{name}" if kind == WEIGHTS else name
        yield Batch(name, kind, bool(ranks), tuple(items)), ranks


def _copiers(
    home: str, nodes: Sequence[str], ranks: Sequence[int], load: Mapping[int, int]
) -> list[int]:
    """One rank on each other node: of those that hold it all, who has least to copy already."""
    found: dict[str, int] = {}
    for rank in ranks:
        node = nodes[rank]
        if node != home and (node not in found or load[rank] < load[found[node]]):
            found[node] = rank
    return list(found.values())


def _nbytes(item: WriteItem) -> int:
    data = item.tensor_data
    return data.chunk.sizes.numel() * data.properties.dtype.itemsize if data is not None else 0
