"""
An exchange: every process gives a short message and gets the messages of all, in rank order.

All exchanges have the same shape. Rank 0 collects and then tells everyone the *verdict*: all messages, or the
one error that ends the attempt for all of them. So a process that fails says so instead of leaving the others
to wait, and only rank 0 has to know which are missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock import _core
from penstock.exceptions import DeadlineExceeded, JobFailed, ProtocolError
from penstock.limit import Limit
from penstock.rendezvous.errors import RendezvousTimeout

MESSAGE_LIMIT = _core.MESSAGE_LIMIT
"""Bytes of one process's message: some endpoint strings, or an error's text."""
VERDICT_MARGIN = _core.VERDICT_MARGIN
"""
Seconds after the deadline in which rank 0's verdict may still come: it names those missing, so it is worth
more than an error of our own.
"""


class Missing(Exception):  # noqa: N818 (never leaves this package)
    """
    Not every process has given its message in time; `ranks` is empty where only rank 0 knows which.

    Where they are known: `why` the wait was in vain, and at rank 0 `no_room`, what the system said where it
    could not let in all processes that came.
    """

    def __init__(
        self, ranks: list[int], why: DeadlineExceeded | None = None, no_room: str | None = None
    ) -> None:
        super().__init__(ranks)
        self.ranks, self.why, self.no_room = ranks, why, no_room


class Exchange:
    """
    One way to exchange. Used by one thread; every process makes the same calls in the same order.

    Parameters
    ----------
    rank, size
        This process, and how many there are.
    """

    trusted = False
    """Whether the job's secret may travel by it, because the launcher's own secrets do."""
    rendezvous_host = ""
    """The host that all processes can reach: what leads there is the way to the other hosts."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def gather(self, message: bytes, deadline: Limit[float]) -> list[bytes]:
        """
        Gives `message` and returns everyone's.

        Raises
        ------
        RendezvousTimeout
            Not every process came; `.missing` holds their ranks, if this process knows them.
        JobFailed
            Another process could not go on; the text names it and says why.
        ProtocolError
            What came is not an answer, or a message is longer than MESSAGE_LIMIT.
        """
        if len(message) > MESSAGE_LIMIT:
            raise ProtocolError(f"expected a message of at most {MESSAGE_LIMIT} bytes, got {len(message)}")
        return self._round(_core.given(message), deadline)

    def fail(self, why: str, deadline: Limit[float]) -> None:
        """
        Takes part in the round as one that cannot go on. The others get the reason, shortened, in place of
        messages.
        """
        try:
            # A file's name may be any bytes: what is not text is shown as the shell writes it.
            contribution = _core.failed(why.encode(errors="backslashreplace").decode())
            if self.rank == 0:
                self._round(contribution, deadline)
            else:
                self.deliver(contribution, deadline)
        except Exception:
            return  # our own error is the one to be told

    def close(self) -> None:
        """Lets go of what the exchange holds. The others' last verdict has been handed over by then."""

    def _round(self, contribution: bytes, deadline: Limit[float]) -> list[bytes]:
        if self.rank != 0:
            try:
                self.deliver(contribution, deadline)
                verdict = self.await_verdict(deadline)
            except Missing as missing:
                raise self._late(missing.ranks, deadline.waited(), missing.why) from None
            return self._judge(verdict)
        known = None
        try:
            verdict = _core.verdict(self.collect(contribution, deadline))
        except Missing as missing:
            verdict = _core.late_verdict(missing.ranks, deadline.waited(), missing.no_room)
            known = missing.why
        self.announce(verdict)
        return self._judge(verdict, known)

    def _judge(self, verdict: bytes, known: DeadlineExceeded | None = None) -> list[bytes]:
        messages, late, failed = _core.judge(verdict, self.size)
        if late is not None:
            missing, waited, why = late
            raise self._late(missing, waited, DeadlineExceeded(*why) if why else known)
        if failed is not None:
            raise JobFailed(failed, "see the output of the process that it names")
        assert messages is not None
        return messages

    def _late(
        self, missing: list[int], waited: float, why: DeadlineExceeded | None = None
    ) -> RendezvousTimeout:
        ranks = ", ".join(map(str, missing[:8])) + (
            f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        )
        who = f"rank{'s' if len(missing) > 1 else ''} {ranks} of {self.size}" if missing else "other ranks"
        return RendezvousTimeout(
            f"waited {waited:.1f} s for {who} to call penstock.init(){f': {why}' if why else ''}",
            (why and why.hint)
            or "check what they do or print, or raise the option `deadline` (PENSTOCK_DEADLINE)",
            missing=missing,
            waited=waited,
        )

    # What a way to exchange has to offer: the first two where rank 0 uses it, the others where the others do.

    def collect(self, own: bytes, deadline: Limit[float]) -> Mapping[int, bytes]:
        """
        Rank 0: everyone's contribution, by rank, `own` among them.

        As soon as one says that its process cannot go on, the rest need not be waited for. Raises Missing.
        """
        raise NotImplementedError("rank 0's end only")

    def announce(self, verdict: bytes) -> None:
        """Rank 0: hands the verdict to everyone who takes part."""
        raise NotImplementedError("rank 0's end only")

    def deliver(self, contribution: bytes, deadline: Limit[float]) -> None:
        """Others: hands the contribution to rank 0. Raises Missing if rank 0 does not take it in time."""
        raise NotImplementedError("the others' end only")

    def await_verdict(self, deadline: Limit[float]) -> bytes:
        """Others: the verdict, which may come up to VERDICT_MARGIN after the deadline. Raises Missing."""
        raise NotImplementedError("the others' end only")
