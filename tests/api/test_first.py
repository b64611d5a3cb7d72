"""What worker 0 does for all, where the calls of this worker for one thing come in each other's way."""

from __future__ import annotations

import pytest

from penstock.first import Deed, Firsts


class Core:
    """Worker 1's, of a job whose worker 0 does the thing as often as this one comes for it."""

    rank, deadline = 1, 1.0

    def __init__(self) -> None:
        self.done = 0
        self.calls = 0
        self.interrupts = False

    def done_by_first(self, what: str) -> int:
        return self.done

    def begin_by_first(self, what: str, timeout: float | None, then: float | None) -> bool:
        self.calls += 1
        self.done += 1
        if self.interrupts:
            raise KeyboardInterrupt
        return False

    def fail_by_first(self, what: str, why: str) -> None:
        pass


def test_a_call_whose_hook_fails_ends_itself_alone() -> None:
    """What had begun meanwhile, and was to be made again, was forgotten: it waited for what never came."""
    core, firsts = Core(), Firsts()
    plain = Deed("load", lambda: None, lambda: 0)

    def hook() -> None:
        core.interrupts = True
        with pytest.raises(KeyboardInterrupt):
            firsts.do(core, plain, None)
        core.interrupts = False
        raise ValueError

    with pytest.raises(ValueError):
        firsts.do(core, plain._replace(hooks=hook), None)
    assert core.calls == 2
    # The call that was interrupted is made again: it is done by now.
    firsts.do(core, plain, None)
    assert core.calls == 2
    firsts.do(core, plain, None)
    assert core.calls == 3
