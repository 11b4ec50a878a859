"""Names of things in a store: jobs, prefixes, generations and their files.

Everything here is checked before it becomes part of a path or a key, so that no
name from a client can leave its own prefix.
"""

import re
from dataclasses import dataclass

# First character alphanumeric, so that "..", "." and hidden names cannot be spelled.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# What a rank may call its body: torch's own `__<rank>_<i>.distcp`, or `<name>.bin`.
BODY = re.compile(r"__[0-9]{1,7}_[0-9]{1,3}\.distcp|[A-Za-z0-9][A-Za-z0-9_-]{0,62}\.bin")
# The folder, below a generation's own, of what its weights alone are: files and manifests of theirs.
WEIGHTS = "weights"
_DIRECTORY = re.compile(r"step-(0|[1-9][0-9]{0,17})\.(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True, order=True)
class Generation:
    """What a job staged at one step; ordered so that a zombie's late step loses.

    Attributes:
        incarnation: Counts the starts of the job; claimed once by its rank 0.
        step: The training step whose state this is, >= 0.
    """

    incarnation: int
    step: int

    @property
    def directory(self) -> str:
        """The folder below the job's prefix that holds this generation."""
        return f"step-{self.step}.{self.incarnation}"

    def folder(self, kind: str) -> str:
        """Where manifests of *kind* (``full`` or ``weights``) lie, below the job's prefix."""
        return self.directory if kind != WEIGHTS else f"{self.directory}/{WEIGHTS}"

    def __str__(self) -> str:
        return f"step {self.step} (incarnation {self.incarnation})"

    @classmethod
    def parse(cls, directory: str) -> "Generation | None":
        """Read a folder's name; None where it is not a generation's."""
        found = _DIRECTORY.fullmatch(directory)
        return cls(incarnation=int(found[2]), step=int(found[1])) if found else None


def manifest_name(rank: int) -> str:
    """The manifest of one rank: ``__<rank>.manifest.json``."""
    return f"__{rank}.manifest.json"


# torch.distributed.checkpoint's own name for the plan of a whole checkpoint.
METADATA = ".metadata"
# Exists once a generation of the job has been complete; see `evac.commit`.
MARKER = "evac-job.json"
