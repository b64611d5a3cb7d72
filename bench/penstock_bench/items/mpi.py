"""
One rank of Open MPI by mpi4py, three ways, each as a good engineer writes it by hand: buffers and argument
lists made beforehand, upper-case calls, a batch as one message.

- *put*. Rank 0, a batch: `Put` of the rows into each consumer's window, `Flush_all`, `Put` of a counter.
  Others: look at the counter, and read all rows where they stand.
- *get*. Rank 0: the rows stand in its own window; a batch is a `Put` of a counter to each consumer. Others:
  look at the counter, `Get` everything that is there, one `Flush`.
- *sendrecv*. Rank 0, a batch: a send to each consumer from where the rows stand. Others: receives.

Two sets of buffers, so that the producer fills one while the other is read. One-sided, consumers tell by a
`Put` that they have read; messages hold the producer back by themselves. sendrecv has variants (single
requests, persistent requests, few persistent requests at a time): all are tried when a case is opened, and
the quickest is kept.

Rows of one element need no counter: their element is the iteration, and MPI moves an aligned word whole.

Windows are made by `Win.Allocate` on one host, which is shared memory, and by `Win.Create` for TCP, because
Open MPI would share the memory of the former whatever transport is asked for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from penstock_bench.items.ranks import Rank, Way
from penstock_bench.items.work import Rows, Work, fill

_LINE = 64
"""Bytes of a cache line: words that different ranks write stand on lines of their own."""
_PAGE = 4096
_TRIALS = 5
_SPINS = 50
"""Looks at a word before the core is offered to another rank, where there are more ranks than cores."""


class Window:
    """
    A window with passive access for all.

    Parameters
    ----------
    comm, work
        Whose.
    rows
        Bytes for rows, in this rank's part.
    """

    COUNTER, TRIP, READ = 0, _LINE, 2 * _LINE

    def __init__(self, comm: Any, work: Work, rows: int) -> None:
        head = self.READ + _LINE * comm.Get_size()
        self.row = -(-head // _PAGE) * _PAGE
        self.data = self.row + -(-work.row_bytes // _PAGE) * _PAGE
        size = self.data + rows
        if work.transport == "tcp":
            self._memory = np.zeros(size + _PAGE, np.uint8)
            at = -self._memory.ctypes.data % _PAGE
            self.bytes = self._memory[at : at + size]
            self.win = MPI.Win.Create(self.bytes, 1, comm=comm)
        else:
            self.win = MPI.Win.Allocate(size, 1, comm=comm)
            self.bytes = np.asarray(self.win.tomemory()).view(np.uint8)
            self.bytes[:] = 0
        comm.Barrier()
        self.win.Lock_all()
        self._sync = self.win.Sync
        self._crowded = comm.Get_size() > len(os.sched_getaffinity(0))

    def words(self, at: int, kind: str = "q") -> memoryview:
        """The word at `at`, as something that is quick to look at."""
        word: memoryview = self.bytes[at : at + 8].data.cast(kind)  # type: ignore[call-overload]
        return word

    def rows(self, at: int, count: int, width: int) -> Rows:
        """Rows that stand in this rank's part."""
        flat: Rows = self.bytes[at : at + 8 * count * width].view(np.float64)
        return flat.reshape(count, width)

    def wait(self, word: memoryview, least: float) -> float:
        """Waits until a word is so large. `Sync` makes others' writes visible and lets MPI advance."""
        sync, left = self._sync, _SPINS
        while word[0] < least:
            sync()
            left -= 1
            if left == 0:
                left = _SPINS
                if self._crowded:
                    os.sched_yield()
        return word[0]

    def close(self) -> None:
        """Collective."""
        self.win.Unlock_all()
        self.win.Free()


class OneSided(Way):
    """What both one-sided ways have in common: counters, and who has read."""

    def __init__(self, comm: Any, work: Work, rows: int) -> None:
        self._comm, self._work = comm, work
        self._rank, self._consumers = comm.Get_rank(), range(1, comm.Get_size())
        self._window = window = Window(comm, work, rows)
        self._win = window.win
        self._read = [window.words(window.READ + _LINE * rank) for rank in self._consumers]
        self._counter, self._trip = window.words(window.COUNTER), window.words(window.TRIP)
        # A word stands where it was put from until the next flush, and the next one is put from elsewhere.
        self._counts = np.zeros((2, work.calls), np.int64)
        self._steps = np.arange(1, work.calls + 1)
        self._count_from = [
            [(self._counts[slot, call : call + 1], 8, MPI.BYTE) for call in range(work.calls)]
            for slot in range(2)
        ]
        self._own = np.zeros(1, np.int64)
        self._own_from = (self._own, 8, MPI.BYTE)
        self._row, self._answer = np.zeros(work.width), np.zeros(work.width)
        self._row_from, self._row_to = (
            (array, work.row_bytes, MPI.BYTE) for array in (self._row, self._answer)
        )
        self._row_at = (window.row, work.row_bytes, MPI.BYTE)

    def ready(self, iteration: int) -> None:
        """Looks at what each consumer has put."""
        if iteration > 2:
            for word in self._read:
                self._window.wait(word, iteration - 2)

    def done(self, iteration: int) -> None:
        """Puts the iteration to rank 0."""
        self._own[0] = iteration
        self._win.Put(self._own_from, 0, (Window.READ + _LINE * self._rank, 8, MPI.BYTE))
        self._win.Flush(0)

    def _count(self, slot: int, iteration: int) -> list[tuple[Any, int, Any]]:
        """The counter after each batch of this iteration, ready to be put."""
        np.add(self._steps, (iteration - 1) * self._work.calls, out=self._counts[slot])
        return self._count_from[slot]

    def settle(self) -> None:
        """A barrier lets MPI advance, while others still look at this rank's window."""
        self._comm.Barrier()

    def close(self) -> None:
        """Collective."""
        self._window.close()


class Put(OneSided):
    """The producer writes into the consumers' windows."""

    def __init__(self, comm: Any, work: Work) -> None:
        super().__init__(comm, work, 0 if comm.Get_rank() == 0 else 2 * work.nbytes)
        data, batch = self._window.data, work.batch * work.row_bytes
        self._bare = work.row_bytes == 8 and work.batch == 1
        if self._rank == 0:
            self._values: Rows = np.empty((work.rows, work.width))
            fill(self._values)
            parts = self._values.reshape(work.calls, -1)
            self._calls = [
                [
                    (
                        (parts[call], batch, MPI.BYTE),
                        (data + slot * work.nbytes + call * batch, batch, MPI.BYTE),
                    )
                    for call in range(work.calls)
                ]
                for slot in range(2)
            ]
        else:
            self._slots = [
                self._window.rows(data + slot * work.nbytes, work.rows, work.width) for slot in range(2)
            ]
            self._last = [self._window.words(data + (slot + 1) * work.nbytes - 8, "d") for slot in range(2)]

    def values(self) -> Rows:
        """The same in every iteration: all puts of the one before have been flushed."""
        return self._values

    def produce(self, iteration: int) -> None:
        """Rows, then the counter; a flush between, because puts have no order."""
        put, flush = self._win.Put, self._win.Flush_all
        consumers, slot = self._consumers, iteration % 2
        if self._bare:
            for source, target in self._calls[slot]:
                for consumer in consumers:
                    put(source, consumer, target)
                flush()
            return
        at = (Window.COUNTER, 8, MPI.BYTE)
        for (source, target), count in zip(self._calls[slot], self._count(slot, iteration), strict=True):
            for consumer in consumers:
                put(source, consumer, target)
            flush()
            for consumer in consumers:
                put(count, consumer, at)
        flush()

    def consume(self, iteration: int) -> Rows:
        """Waits for the last batch: the rows stand where they are read."""
        slot = iteration % 2
        if self._bare:
            rows = self._slots[slot]
            self._window.wait(self._last[slot], iteration)
            while not (rows == iteration).all():
                self._win.Sync()
            return rows
        self._window.wait(self._counter, iteration * self._work.calls)
        return self._slots[slot]

    def ping(self, number: int) -> None:
        """A row there, a row back."""
        self._pass(1, number)
        self._take(number)

    def pong(self, number: int) -> None:
        """The answer."""
        self._take(number)
        self._pass(0, number)

    def _pass(self, other: int, number: int) -> None:
        self._own[0] = number
        if self._work.row_bytes > 8:
            self._win.Put(self._row_from, other, self._row_at)
            self._win.Flush(other)
        self._win.Put(self._own_from, other, (Window.TRIP, 8, MPI.BYTE))
        self._win.Flush(other)

    def _take(self, number: int) -> None:
        """The row stands in the own window."""
        self._window.wait(self._trip, number)


class Get(OneSided):
    """The consumers read from the producer's window."""

    def __init__(self, comm: Any, work: Work) -> None:
        super().__init__(comm, work, 2 * work.nbytes if comm.Get_rank() == 0 else 0)
        data, batch = self._window.data, work.batch * work.row_bytes
        if self._rank == 0:
            self._slots = [
                self._window.rows(data + slot * work.nbytes, work.rows, work.width) for slot in range(2)
            ]
            for rows_of_slot in self._slots:
                fill(rows_of_slot)
        else:
            self._rows: Rows = np.empty((work.rows, work.width))
            parts = self._rows.reshape(work.calls, -1)
            self._calls = [
                [
                    (
                        (parts[call], batch, MPI.BYTE),
                        (data + slot * work.nbytes + call * batch, batch, MPI.BYTE),
                    )
                    for call in range(work.calls)
                ]
                for slot in range(2)
            ]
        self._next = 0
        self._own_row = self._window.rows(self._window.row, 1, work.width)[0]

    def ready(self, iteration: int) -> None:
        """The set that nobody reads any more."""
        super().ready(iteration)
        self._next = iteration % 2

    def values(self) -> Rows:
        """In the window."""
        return self._slots[self._next]

    def produce(self, iteration: int) -> None:
        """Only counters travel; each is flushed before the next, so that they cannot overtake."""
        put, flush, sync = self._win.Put, self._win.Flush_all, self._win.Sync
        at = (Window.COUNTER, 8, MPI.BYTE)
        sync()
        for count in self._count(iteration % 2, iteration):
            for consumer in self._consumers:
                put(count, consumer, at)
            flush()

    def consume(self, iteration: int) -> Rows:
        """Gets all batches that are there, flushes once, looks again."""
        get, flush = self._win.Get, self._win.Flush
        first, done, calls = (iteration - 1) * self._work.calls, 0, self._calls[iteration % 2]
        while done < len(calls):
            there = min(int(self._window.wait(self._counter, first + done + 1)) - first, len(calls))
            for to, source in calls[done:there]:
                get(to, 0, source)
            flush(0)
            done = there
        return self._rows

    def ping(self, number: int) -> None:
        """A counter there, the other gets the row; and back."""
        self._tell(1, number)
        self._take(1, number)

    def pong(self, number: int) -> None:
        """The answer."""
        self._take(0, number)
        self._tell(0, number)

    def _tell(self, other: int, number: int) -> None:
        self._own_row[0] = self._own[0] = number
        self._win.Sync()
        self._win.Put(self._own_from, other, (Window.TRIP, 8, MPI.BYTE))
        self._win.Flush(other)

    def _take(self, other: int, number: int) -> None:
        self._window.wait(self._trip, number)
        self._win.Get(self._row_to, other, self._row_at)
        self._win.Flush(other)

    def fresh(self) -> Callable[[], object]:
        """`Get` and `Flush` of rank 0's row."""
        get, flush, to, at = self._win.Get, self._win.Flush, self._row_to, self._row_at

        def act() -> None:
            get(to, 0, at)
            flush(0)

        return act


class SendRecv(Way):
    """
    Messages.

    Parameters
    ----------
    persistent
        Whether requests are made once and started again.
    """

    def __init__(self, comm: Any, work: Work, *, persistent: bool) -> None:
        self._comm = comm.Dup()
        self._work, self._rank = work, comm.Get_rank()
        self._consumers = range(1, comm.Get_size())
        self._persistent = persistent
        self._slots = [np.empty((work.rows, work.width)) for _ in range(2)]
        for rows_of_slot in self._slots:
            fill(rows_of_slot)
        batch = work.batch * work.row_bytes
        self._parts = [
            [(part, batch, MPI.BYTE) for part in slot.reshape(work.calls, -1)] for slot in self._slots
        ]
        self._requests: list[list[Any]] = [[], []]
        self._by_call: list[list[list[Any]]] = [[], []]
        self._begun = [False, False]
        if persistent:
            for slot, parts in enumerate(self._parts):
                self._by_call[slot] = [self._make(part) for part in parts]
                self._requests[slot] = [one for group in self._by_call[slot] for one in group]
        self._next = 0
        self._row, self._answer = np.zeros(work.width), np.zeros(work.width)
        self._row_from, self._row_to = ((a, work.row_bytes, MPI.BYTE) for a in (self._row, self._answer))

    def _make(self, part: Any) -> list[Any]:
        if self._rank:
            return [self._comm.Recv_init(part, 0, 0)]
        return [self._comm.Send_init(part, consumer, 0) for consumer in self._consumers]

    def ready(self, iteration: int) -> None:
        """The messages from these rows have gone."""
        self._next = slot = iteration % 2
        if self._begun[slot]:
            MPI.Request.Waitall(self._requests[slot])
            self._begun[slot] = False

    def values(self) -> Rows:
        """The set that is not under way."""
        return self._slots[self._next]

    def produce(self, iteration: int) -> None:
        """A message a batch and consumer."""
        slot = iteration % 2
        if self._persistent:
            if len(self._consumers) == 1:
                for request in self._requests[slot]:
                    request.Start()
            else:
                start = MPI.Prequest.Startall
                for requests in self._by_call[slot]:
                    start(requests)
        else:
            send = self._comm.Isend
            self._requests[slot] = [
                send(part, consumer, 0) for part in self._parts[slot] for consumer in self._consumers
            ]
        self._begun[slot] = True

    def consume(self, iteration: int) -> Rows:
        """The next iteration's receives are posted before this one's are waited for."""
        slot = iteration % 2
        if self._persistent:
            for one in (slot, 1 - slot):
                if not self._begun[one]:
                    MPI.Prequest.Startall(self._requests[one])
                    self._begun[one] = True
            MPI.Request.Waitall(self._requests[slot])
            self._begun[slot] = False
        else:
            receive = self._comm.Recv
            for part in self._parts[slot]:
                receive(part, 0, 0)
        return self._slots[slot]

    def settle(self) -> None:
        """Sends end; a receive that was posted ahead stays for the next measurement."""
        if self._rank == 0:
            for slot in range(2):
                if self._begun[slot]:
                    MPI.Request.Waitall(self._requests[slot])
                    self._begun[slot] = False
        self._comm.Barrier()

    def ping(self, _number: int) -> None:
        """A row there, a row back."""
        self._comm.Send(self._row_from, 1, 1)
        self._comm.Recv(self._row_to, 1, 1)

    def pong(self, _number: int) -> None:
        """The answer."""
        self._comm.Recv(self._row_to, 0, 1)
        self._comm.Send(self._row_from, 0, 1)

    def close(self) -> None:
        """Collective."""
        for slot in range(2):
            if self._begun[slot]:
                for request in self._requests[slot]:
                    request.Cancel()
                    request.Wait()
            if self._persistent:
                for request in self._requests[slot]:
                    request.Free()
        self._comm.Free()


class Windowed(SendRecv):
    """
    Persistent requests, but only so many at a time: thousands of receives that wait make every match slow,
    and messages that nobody waits for are copied twice. A consumer gives a credit for each group it took.
    """

    GROUP = 32

    def __init__(self, comm: Any, work: Work) -> None:
        super().__init__(comm, work, persistent=True)
        self._nothing = (np.empty(0), 0, MPI.BYTE)
        self._groups = [_cut(calls, self.GROUP) for calls in self._by_call]
        self._sent = 0
        self._posted: list[Any] = []

    def produce(self, iteration: int) -> None:
        """A group goes when the one before the last has been taken."""
        slot, start, receive = iteration % 2, MPI.Prequest.Startall, self._comm.Recv
        for group in self._groups[slot]:
            if self._sent >= 2:
                for consumer in self._consumers:
                    receive(self._nothing, consumer, 2)
            start(group)
            self._sent += 1
        self._begun[slot] = True

    def consume(self, iteration: int) -> Rows:
        """The next group is posted before this one is waited for."""
        slot, start, wait = iteration % 2, MPI.Prequest.Startall, MPI.Request.Waitall
        groups = self._groups[slot]
        for place, group in enumerate(groups):
            if not self._posted:
                start(group)
            self._posted = groups[place + 1] if place + 1 < len(groups) else self._groups[1 - slot][0]
            start(self._posted)
            wait(group)
            self._comm.Send(self._nothing, 0, 2)
        return self._slots[slot]

    def close(self) -> None:
        """Collective."""
        for request in self._posted:
            request.Cancel()
            request.Wait()
        # The credits of the last groups are still on their way: no rank has asked for them.
        self._comm.Barrier()
        status = MPI.Status()
        while self._rank == 0 and self._comm.Iprobe(MPI.ANY_SOURCE, 2, status):
            self._comm.Recv(self._nothing, status.Get_source(), 2)
        super().close()


def _cut(calls: list[list[Any]], size: int) -> list[list[Any]]:
    """The requests of so many calls at a time."""
    return [
        [request for call in calls[at : at + size] for request in call] for at in range(0, len(calls), size)
    ]


def ways(name: str, comm: Any, work: Work) -> list[Callable[[], Way]]:
    """Everything that a way may be."""
    if name == "put":
        return [partial(Put, comm, work)]
    if name == "get":
        return [partial(Get, comm, work)]
    return [
        partial(SendRecv, comm, work, persistent=False),
        partial(SendRecv, comm, work, persistent=True),
        partial(Windowed, comm, work),
    ]


class MpiRank(Rank):
    """All cases of one number of consumers and one transport."""

    def __init__(self) -> None:
        self._comm = MPI.COMM_WORLD
        super().__init__(self._comm.Get_rank(), self._comm.Get_size())

    def way(self, name: str, work: Work) -> Way:
        """The quickest variant, on the slowest rank."""
        made = ways(name, self._comm, work)
        if len(made) == 1:
            return made[0]()
        return made[int(np.argmin([self._try(make) for make in made]))]()

    def _try(self, make: Callable[[], Way]) -> float:
        way = make()
        self.run(way, 1, 2, each=True)
        start = time.perf_counter()
        self.run(way, 3, _TRIALS, each=False)
        seconds = time.perf_counter() - start
        way.close()
        slowest: float = self._comm.allreduce(seconds, op=MPI.MAX)
        return slowest


if __name__ == "__main__":
    MpiRank().serve()
