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
        self.iteration = 0
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


def test_a_call_that_was_interrupted_is_another_one_once_an_iteration_was_completed() -> None:
    """Worker 0 gives the same values again, after training in between: nothing was loaded."""
    core, firsts = Core(), Firsts()
    load = Deed("load", lambda: None, lambda: 0)
    core.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        firsts.do(core, load, None)
    core.interrupts = False
    core.iteration += 1
    firsts.do(core, load, None)
    assert core.calls == 2


class First(Core):
    """Worker 0's: the others come as often as they are let."""

    rank = 0

    def __init__(self) -> None:
        super().__init__()
        self.come = 0
        self.failed: list[str] = []

    def begin_by_first(self, what: str, timeout: float | None, then: float | None) -> bool:
        if not self.come:
            raise TimeoutError
        self.come -= 1
        return True

    def end_by_first(self, what: str, then: float | None) -> None:
        self.done += 1
        if self.interrupts:
            raise KeyboardInterrupt

    def fail_by_first(self, what: str, why: str) -> None:
        self.failed.append(why)


@pytest.mark.parametrize("come", [False, True])
def test_a_repetition_that_cannot_be_read_leaves_the_call_that_is_over_for_the_others(come: bool) -> None:
    core, firsts, done = First(), Firsts(), []
    plain = Deed("load", lambda: done.append("v"), lambda: 7, lambda: done.append("behind"))

    def unread() -> int:
        raise MemoryError("it is large")

    core.come, core.interrupts = 1, True
    with pytest.raises(KeyboardInterrupt):
        firsts.do(core, plain, None)
    core.interrupts = False
    if come:
        # To their next call of that name, and are told.
        core.come = 1
        with pytest.raises(MemoryError):
            firsts.do(core, plain._replace(says=unread), None)
        assert core.failed[-1] == "MemoryError: it is large"
        core.come = 1
    else:
        with pytest.raises(TimeoutError) as missed:
            firsts.do(core, plain._replace(says=unread), None)
        assert missed.value.__notes__ == ["worker 0 could not have done it anyway: MemoryError: it is large"]
    firsts.do(core, plain, None)
    assert done == ["v", "behind"], "it is over for them, and not done again"
    core.come = 1
    firsts.do(core, plain._replace(act=lambda: done.append("u"), says=lambda: 8), None)
    assert done == ["v", "behind", "u", "behind"]


def test_an_error_whose_text_no_file_could_hold_is_told_to_the_others() -> None:
    """They heard nothing, and worker 0 another error than its own."""
    core, firsts = First(), Firsts()
    core.come = 2

    def fails() -> int:
        raise ValueError("file \udcff")

    for deed in (Deed("load", lambda: None, fails), Deed("load", fails, lambda: 7)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="file"):
            firsts.do(core, deed, None)
        assert core.failed.pop() == "ValueError: file \\udcff"
