"""
The work: a producer sets n rows, a batch of them a call, and every consumer gets all of them, iteration after
iteration.

At least: n rows are written once and read once by each consumer, so n * row_bytes pass C times from one core
to another (one host) or through the loopback (TCP). A call moves a batch.

A row is float64. Element 0 is the iteration that it was made in; the others say which row it is. Each
iteration a consumer adds up every element that it got and compares: nothing is counted that did not arrive
whole, and every system pays for the reading. A producer may be one iteration ahead, so that both work at the
same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.units import format_size

Rows = npt.NDArray[np.float64]

ELEMENT = 8
"""Bytes of a float64."""
MOST_BYTES = 4 << 20
"""Of the rows of a table, where the rows are small: with both ends it is about a core's share of a cache."""
LEAST_ROWS = 256
MOST_ROWS = 4096
"""More rows would only repeat the same calls."""
TRANSPORTS = ("shm", "tcp")
PROPAGATIONS = ("eager", "lazy", "bounded")


class WrongRowsError(Exception):
    """What a consumer got is not what the producer set."""


@dataclass(frozen=True)
class Work:
    """
    One case.

    Parameters
    ----------
    row_bytes
        Bytes of a row: a multiple of 8.
    consumers
        Processes that get every row.
    batch
        Rows of a call.
    transport
        "shm" or "tcp".
    """

    row_bytes: int
    consumers: int
    batch: int
    transport: str

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.row_bytes // ELEMENT

    @property
    def rows(self) -> int:
        """Rows of the table: a multiple of the batch."""
        wanted = max(LEAST_ROWS, min(MOST_ROWS, MOST_BYTES // self.row_bytes))
        return -(-wanted // self.batch) * self.batch

    @property
    def calls(self) -> int:
        """Calls of an iteration, on each side."""
        return self.rows // self.batch

    @property
    def nbytes(self) -> int:
        """Bytes that each consumer gets in an iteration."""
        return self.rows * self.row_bytes

    @property
    def workers(self) -> int:
        """Processes: the producer and the consumers."""
        return self.consumers + 1

    def __str__(self) -> str:
        consumers = "1 consumer" if self.consumers == 1 else f"{self.consumers} consumers"
        calls = "a row a call" if self.batch == 1 else f"{self.batch} rows a call"
        return f"rows of {format_size(self.row_bytes)}, {consumers}, {calls}, {self.transport}"


def fill(rows: Rows) -> None:
    """Writes what never changes: which row it is. Element 0 is left to `stamp`."""
    rows[:] = (np.arange(len(rows)) % 1024)[:, None]
    stamp(rows, 0)


def stamp(rows: Rows, iteration: int) -> None:
    """Writes the iteration into every row."""
    rows[:, 0] = iteration


def total(rows: Rows) -> float:
    """The sum of all elements. All are small whole numbers, so it is exact in any order."""
    return float(np.add.reduce(rows, axis=None))


class Verifier:
    """
    Compares what a consumer got with what was set.

    Parameters
    ----------
    work
        The case.
    """

    def __init__(self, work: Work) -> None:
        self._rows = work.rows
        self._constant = float(np.sum(np.arange(work.rows) % 1024)) * (work.width - 1)

    def check(self, rows: Rows, iteration: int, ahead: int) -> None:
        """
        Reads every element.

        Parameters
        ----------
        rows
            What was got.
        iteration
            The one that was asked for.
        ahead
            Iterations that a row may be newer.

        Raises
        ------
        WrongRowsError
            The sum is another one.
        """
        stamps = total(rows) - self._constant
        if not iteration * self._rows <= stamps <= (iteration + ahead) * self._rows:
            raise WrongRowsError(
                f"the rows of iteration {iteration} add up to {stamps + self._constant:.17g}, expected "
                f"{iteration * self._rows + self._constant:.17g}"
                + (f" or up to {ahead * self._rows} more" if ahead else "")
            )

    def check_each(self, rows: Rows, iteration: int, ahead: int) -> None:
        """The same element by element, naming the first that is wrong."""
        wrong = (rows[:, 0] < iteration) | (rows[:, 0] > iteration + ahead)
        wrong |= (rows[:, 1:] != (np.arange(len(rows)) % 1024)[:, None]).any(axis=1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise WrongRowsError(f"row {row} of iteration {iteration} is {rows[row, :4]}...")
