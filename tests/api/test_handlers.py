"""Whose exception it is: a signal handler's, or that of the object at hand."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from penstock.handlers import Handlers


class Stop(Exception):
    pass


def plain(*_: Any) -> None:
    raise Stop


class Preemption:
    def come(self, *_: Any) -> None:
        raise Stop

    def __call__(self, *_: Any) -> None:
        raise Stop


def takes_itself_away(*_: Any) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise Stop


@pytest.fixture
def put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("put_back")
@pytest.mark.parametrize(
    "handler",
    [
        plain,
        partial(plain, 1),
        Preemption().come,
        partial(Preemption().come, 1),
        Preemption(),
        takes_itself_away,
    ],
)
def test_what_a_handler_raises_is_known_as_its_whatever_kind_of_callable_it_is(handler: Any) -> None:
    signal.signal(signal.SIGUSR1, handler)
    handlers = Handlers()
    with pytest.raises(Stop) as caught:
        signal.raise_signal(signal.SIGUSR1)
    assert handlers.raised(caught.value)


@pytest.mark.usefixtures("put_back")
def test_what_something_else_raises_is_not() -> None:
    signal.signal(signal.SIGUSR1, plain)
    handlers = Handlers()
    with pytest.raises(Stop) as caught:
        takes_itself_away()
    assert not handlers.raised(caught.value)
