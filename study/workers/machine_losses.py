"""The trials lost on each machine of a cluster, and the machines to avoid for it."""

from collections import defaultdict

#: Lost trials from which a machine is avoided.
MOST_LOSSES = 2


class MachineLosses:
    """Counts the trials lost on each machine.

    A machine may be ill without being lost, and would then take cell after cell. A cell that was lost on several
    machines is itself at fault, so it counts against none of them.
    """

    def __init__(self) -> None:
        self._cells: dict[str, list[str]] = defaultdict(list)
        """Keys of the cells of the trials lost on each machine, by Ray's id of the machine."""

    def add(self, node: str, cell: str) -> None:
        """Count a trial of a cell that was lost on a machine."""
        self._cells[node].append(cell)

    @property
    def avoided(self) -> list[str]:
        """Ray's ids of the machines to avoid."""
        return sorted(node for node in self._cells if self._count(node) >= MOST_LOSSES)

    def _count(self, node: str) -> int:
        elsewhere = {cell for other, cells in self._cells.items() if other != node for cell in cells}
        return sum(cell not in elsewhere for cell in self._cells[node])
