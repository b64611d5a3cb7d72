"""
Checksums of a table's rows, eight bytes each: whether a script has written to rows that are about to be
overwritten is known without a copy of the table.

A row's sum is that of its elements' bits, each times an odd number of its column, modulo 2**64. So a change
of one element is always seen, and one of several is missed by chance alone.
"""

from __future__ import annotations

import torch

from .bits import INTEGERS

BLOCK = 1 << 20
"""Elements of which sums are computed at a time: in between they take eight bytes each."""


class RowSums:
    """Of each row of a table its sum, as it was noted last."""

    def __init__(self, table: torch.Tensor) -> None:
        width = table[0].numel()
        draws = torch.Generator(device="cpu").manual_seed(width)
        factors = torch.empty(width, dtype=torch.int64, device="cpu").random_(generator=draws)
        self._factors = (factors | 1).to(table.device)
        self._shape, self._dtype = table.shape, table.dtype
        self._sums = torch.empty(len(table), dtype=torch.int64, device=table.device)
        self.note_all(table)

    def fits(self, table: torch.Tensor) -> bool:
        """Whether it is a table of that shape and element type still, and where it was."""
        is_there = table.device == self._sums.device
        return is_there and table.shape == self._shape and table.dtype is self._dtype

    def note(self, places: torch.Tensor, rows: torch.Tensor) -> None:
        """These rows hold this."""
        self._sums[places.to(self._sums.device)] = self._of(rows)

    def note_all(self, table: torch.Tensor) -> None:
        """All rows hold what the table does."""
        for begin, end in self._blocks():
            self._sums[begin:end] = self._of(table[begin:end])

    def changed(self, table: torch.Tensor, places: torch.Tensor) -> bool:
        """Whether one of these rows of the table is not what was noted of it."""
        places = places.to(self._sums.device)
        return not torch.equal(self._of(table.index_select(0, places)), self._sums[places])

    def any_changed(self, table: torch.Tensor) -> bool:
        """Whether any row is not."""
        blocks = self._blocks()
        return not all(torch.equal(self._of(table[one:end]), self._sums[one:end]) for one, end in blocks)

    def _blocks(self) -> list[tuple[int, int]]:
        rows, count = len(self._sums), max(1, BLOCK // len(self._factors))
        return [(begin, min(begin + count, rows)) for begin in range(0, rows, count)]

    def _of(self, rows: torch.Tensor) -> torch.Tensor:
        bits = rows.detach().contiguous().view(INTEGERS[rows.element_size()]).reshape(len(rows), -1)
        return (bits.to(torch.int64) * self._factors).sum(1)
