"""
When a backward pass begins and ends.

It begins, for us, with the first gradient that it adds to a parameter, and ends with autograd's own callback
(`queue_callback`). A pass may reach several distributed models, as a generator's loss does that goes through
the discriminator: they end together, with one iteration of the job's clock, so that all workers mean the same
iteration by it whatever the order in which gradients came. Where it reaches models of several jobs, what is
left of all of them leaves before the average of any is awaited: each job's workers may wait in another order.

Passes may be nested: activation checkpointing with `use_reentrant=True` runs a backward pass inside a node of
another. The callback of the inner pass would come too early, so the end is asked of the outermost: through a
hook of the node that runs the inner one, which autograd calls when it is back in the outer.

A pass that ends with an error calls nothing of this; but autograd then drops what it would have called, by
which it is noticed before the next pass begins. One that ends with an error in the callback notes that there.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Protocol

import torch

from ...exceptions import OptionError
from ...job import Job

# The id of the backward pass that this thread is in; -1 outside.
_this_pass: Callable[[], int] = torch._C._current_graph_task_id
_engine: Any = torch.autograd.Variable._execution_engine

# What autograd calls for a node that is written in Python, with the node first.
_run_node = {
    run.__code__
    for name in ("apply", "apply_boxed")
    if (run := getattr(torch.autograd.function.BackwardCFunction, name, None)) is not None
}

_of_job: weakref.WeakKeyDictionary[Job, Backward] = weakref.WeakKeyDictionary()
_ending: dict[int, dict[Backward, None]] = {}
"""The jobs whose models each outermost pass has reached, in order; each once, whichever threads reach it."""


class Part(Protocol):
    """What takes part in a backward pass: a distributed model."""

    def send_rest(self) -> None:
        """Contributes all that has not left."""

    def take_average(self) -> bool:
        """Takes the average in; whether there is a second part of it, for which all contribute once more."""

    def send_found(self) -> None:
        """Contributes the second part."""

    def take_found(self) -> None:
        """Takes it in."""

    def begin_anew(self) -> None:
        """The pass is over, or ended with an error."""

    def distrust(self) -> None:
        """What is there may be averages from now on."""

    @property
    def has_sent(self) -> bool:
        """Whether anything has left in this pass."""

    @property
    def watches(self) -> bool:
        """Whether the model is averaged still."""


def backward_of(job: Job) -> Backward:
    """The job's."""
    if job not in _of_job:
        _of_job[job] = Backward(job)
    return _of_job[job]


class Backward:
    """The backward passes of this process, for one job."""

    def __init__(self, job: Job) -> None:
        self._job = weakref.ref(job)
        self.known: int | None = None
        """The pass whose end is known to be heard of. A hook that finds another calls `enter`."""
        self._outermost = -1
        self._thread = 0
        self._nodes: weakref.WeakSet[Any] = weakref.WeakSet()
        """Nodes that passes were run inside of, whose own pass says when it is back."""
        self._inside: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those of them that have not begun anew since."""
        self._heard: weakref.WeakSet[Any] = weakref.WeakSet()
        """Nodes that say when they begin."""
        self._awaited: weakref.ref[_Expected] | None = None
        """What autograd holds as long as the outermost pass is under way."""
        self._reached: list[weakref.ref[Part]] = []
        self._held: list[Part] = []
        """The same as long as the pass goes well. They hold the job, of which there may be no other pass."""
        self._again: list[weakref.ref[Part]] = []
        self._number = 0
        """Of the pass, for what outlives it."""
        self._broken = False
        """Whether it ended with an error."""
        self._is_complete = False
        """Whether all that it was to bring is there."""
        self._is_over = False
        """Whether all that it had to send has left, and its iteration is complete."""
        self._has_sent = False
        """Whether anything of it had left when it broke off."""

    def enter(self) -> None:
        """
        Sees to it that the end of this pass is heard of. Raises OptionError if an earlier one ended with an
        error and cannot be gone on with, or was run inside the same other one, or if this one is compiled.
        """
        if _is_compiled():
            raise OptionError(
                "compiled autograd runs this backward pass, in which gradients cannot be averaged",
                "leave it off; torch.compile of the model compiles what its backward computes all the same",
            )
        node = _node_outside()
        if self._broken:
            # The pass around this one may have come to no model so far: what the failed one left is its own.
            if self._is_under_way or node in self._inside:
                raise _of_one_inside()
            self._forget_broken()
        if node is None:
            self._await_end()
        else:
            _engine.queue_callback(_Expected(self, self._number))
            if node not in self._heard:
                # A graph that is kept is run again, also when it ended with an error.
                node.register_prehook(functools.partial(_begins, weakref.ref(node), self._inside))
                self._heard.add(node)
            self._inside.add(node)
            if node not in self._nodes:
                node.register_hook(_Expected(self, self._number, self._await_end))
                self._nodes.add(node)
        self.known = _this_pass()

    def has_broken(self, number: int) -> None:
        """A pass will not end: this one, unless it is over already."""
        if number == self._number:
            self._break_off()

    @property
    def _parts(self) -> list[Part]:
        """What it has reached, and what of that is there still."""
        return _there(self._reached)

    def reach(self, part: Part) -> None:
        """The pass has reached a model for the first time."""
        self._held.append(part)
        self._reached.append(weakref.ref(part))

    def _await_end(self) -> None:
        outermost = _this_pass()
        if outermost == self._outermost:
            return
        if self._outermost != -1:
            if self._thread != threading.get_ident():
                raise OptionError(
                    "two threads of this worker run backward passes of distributed models at the same time",
                    "let one thread train, or give each its own process",
                )
            if self._is_under_way:
                # What it has added so far stays, so the other is not to end well either, nor to send more.
                self._broken, self.known = True, None
                raise OptionError(
                    "a hook runs a backward pass of a distributed model inside another one",
                    "run it when the other has ended, or in the backward of a torch.autograd.Function",
                )
            self._forget_broken()
        self._outermost, self._thread = outermost, threading.get_ident()
        together = _ending.setdefault(outermost, {})
        together.setdefault(self)
        is_first = next(iter(together)) is self
        then = (lambda: _end(outermost)) if is_first else None
        expected = _Expected(self, self._number, then)
        self._awaited = weakref.ref(expected)
        _engine.queue_callback(expected)

    @property
    def _is_under_way(self) -> bool:
        """Whether the outermost pass is: held up, where this is another."""
        awaited = self._awaited
        expected = None if awaited is None else awaited()
        return expected is not None and not expected.came

    def _forget_broken(self) -> None:
        """
        A pass ended with an error, which the script has caught. Raises OptionError where it cannot be gone on
        with: again and again, as this worker may lack a step of the others', or they wait for it.
        """
        sent = self._has_sent or any(part.has_sent for part in self._parts)
        job, is_over = self._job(), self._is_over
        # Unless no model is there that would be stepped by it.
        lacks = bool(self._again) or any(part.watches for part in self._parts)
        stands = lacks if is_over else sent
        if job is None or job.closed or self._is_complete or not stands:
            self.reset()
            return
        self._has_sent, self._broken = sent, True
        self._wait_for_another()
        if job.size == 1:
            raise OptionError(
                "a backward pass ended with an error in the middle of an average, which nothing can complete",
                "end the job, and start again from a checkpoint; with overlap=False of `ps.torch.distribute` "
                "gradients leave only when the pass has ended",
            )
        if is_over:
            raise OptionError(
                "a backward pass ended with an error before this worker had its average, by which the others "
                "may have stepped",
                "end the job, and start again from a checkpoint",
            )
        raise OptionError(
            "a backward pass ended with an error after some of its gradients had left for the other "
            "workers, who wait for the rest",
            "let the error end this worker; with overlap=False of `ps.torch.distribute` gradients leave "
            "only when the pass has ended",
        )

    def send_rest(self) -> None:
        """What has not left leaves, and the iteration is complete."""
        if self._broken:
            raise _of_one_inside()
        self._again = []
        job = self._job()
        if job is not None and self._parts:
            for part in self._parts:
                part.send_rest()
            job.clock()
            self._is_over = True

    def take_average(self) -> None:
        """Waits for the average, and has the second part of it leave, if there is one."""
        again = [part for part in self._parts if part.take_average()]
        self._again = [weakref.ref(part) for part in again]
        job = self._job()
        if job is not None and again:
            for part in again:
                part.send_found()
            job.clock()
        self._is_complete = not self._again

    def take_found(self) -> None:
        """Waits for the second part."""
        for part in _there(self._again):
            part.take_found()
        self._is_complete = True

    def leave(self) -> None:
        """The pass has ended. If it was cut short before all was there, later ones say so where they must."""
        job = self._job()
        if self._is_complete or job is None or job.closed:
            self.reset()
        elif job.size == 1 and self._is_over and not self._again:
            # Nobody else has stepped.
            for part in self._parts:
                part.distrust()
            self.reset()
        else:
            self._break_off()

    def _break_off(self) -> None:
        self._broken = True
        self._has_sent |= any(part.has_sent for part in self._parts)
        self._held = []

    def reset(self) -> None:
        """The pass is over, or broken off."""
        for part in self._parts:
            part.begin_anew()
        self._wait_for_another()
        self._reached, self._again = [], []
        self._broken = self._is_complete = self._is_over = self._has_sent = False

    def _wait_for_another(self) -> None:
        _ending.pop(self._outermost, None)
        self._held = []
        self._nodes.clear()
        self.known, self._outermost, self._awaited = None, -1, None
        self._number += 1


def _there(parts: Iterable[weakref.ref[Part]]) -> list[Part]:
    return [part for found in parts if (part := found()) is not None]


def _of_one_inside() -> OptionError:
    return OptionError(
        "a backward pass that was run inside this one ended with an error, so the gradients are not those of "
        "one whole pass",
        "let the error end the pass, clear the gradients, and run it again; if some had already left, that "
        "says what to do: with overlap=False of `ps.torch.distribute` none leaves before the pass has ended",
    )


class _Expected:
    """What autograd calls if a pass goes well. It drops it in any case."""

    came = True
    """Whether it was called; also where nothing could be."""

    def __init__(self, backward: Backward, number: int, then: Callable[[], None] | None = None) -> None:
        self._backward, self._number, self._then = backward, number, then
        self.came = False

    def __call__(self, *_: Any) -> None:
        self.came = True
        if self._then is not None:
            self._then()

    def __del__(self) -> None:
        if not self.came:
            self._backward.has_broken(self._number)


def _is_compiled() -> bool:
    """Whether compiled autograd runs this pass: it has a graph task as any other, whose end is never said."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    return _this_pass() == -1 or bool(getattr(compiled, "in_compiled_autograd_region", False))


def _end(outermost: int) -> None:
    """The pass has ended."""
    together = _ending.pop(outermost, {})
    try:
        for backward in together:
            backward.send_rest()
        for backward in together:
            backward.take_average()
        for backward in together:
            backward.take_found()
    finally:
        for backward in together:
            backward.leave()


def _begins(node: weakref.ref[Any], inside: weakref.WeakSet[Any], *_: Any) -> None:
    """A node is about to run."""
    if (begun := node()) is not None:
        inside.discard(begun)


def _node_outside() -> Any:
    """The outermost node of a backward pass that this one runs inside of; None if it runs by itself."""
    found = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _run_node:
            # Of no other frame: Python keeps what it has shown of a frame's variables with the frame.
            found = frame.f_locals["self"]
        frame = frame.f_back
    return found
