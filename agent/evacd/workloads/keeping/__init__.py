"""What a restart of the daemon does not lose: which slots there are, whose, and their memory.

A `Table` in a file says what each slot is, an `FdStore` (systemd's) holds its memory. Where there is
no fd store, or it lost something, the slot's own process hands the memory back.
"""

from evacd.workloads.keeping.fds import FdStore, Given
from evacd.workloads.keeping.keeper import Keeper
from evacd.workloads.keeping.table import Table

__all__ = ["FdStore", "Given", "Keeper", "Table"]
