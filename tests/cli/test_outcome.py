"""Which of many failures is reported: the cause, not what followed from it."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from penstock.cli import terminal
from penstock.launch.console import Name
from penstock.launch.outcome import Ended, Outcome, first_cause, traceback_of

LOST = b"""Traceback (most recent call last):
  File "train.py", line 9, in <module>
    w.pull()
penstock.exceptions.WorkerLost: worker 1 was lost: its connection closed
hint: look at worker 1
"""
OWN = b"""warming up
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    read()
ValueError: bad record
"""
SERVERS = b"the job failed: worker 1 was lost\n"


def ended(role, rank, returncode, tail=b"", *, stopped=False):
    return Ended(Name(role, rank), 4000 + rank, returncode, stopped, tail)


@pytest.mark.parametrize("own", [1, -signal.SIGKILL, -signal.SIGSEGV])
def test_the_cause_is_found_in_whatever_order_the_ends_are_seen(own):
    cause = ended("worker", 1, own, OWN if own > 0 else b"")
    others = [
        ended("worker", 0, 1, LOST),
        ended("server", 0, 3, SERVERS),
        ended("worker", 2, -15, stopped=True),
    ]
    for position in range(4):
        assert first_cause([*others[:position], cause, *others[position:]]) is cause


def test_a_loss_that_only_the_others_saw_is_told_by_the_first_of_them():
    hung = ended("worker", 1, -9, stopped=True)
    first = ended("worker", 0, 1, LOST)
    assert first_cause([ended("server", 0, 3, SERVERS), first, ended("worker", 2, 1, LOST), hung]) is first


# Its server was blamed, which had heard of it, and nobody saw its traceback.
def test_a_worker_that_is_told_to_end_while_it_does_is_the_cause():
    slow = ended("worker", 1, -signal.SIGTERM, OWN, stopped=True)
    server = ended("server", 0, 3, b"the job failed: worker 1 was lost: it failed: ValueError: bad record\n")
    # What it writes behind its own word, and where that stands.
    speaks = replace(server, tail=server.tail + b"ended, as the job failed: see above\n")
    for others in ([server], [speaks], [ended("worker", 0, 1, LOST), server]):
        cause = first_cause([*others, slow])
        assert (cause.name, cause.exit_code) == (slow.name, 1)
        outcome = Outcome(1, cause, others=True)
        assert "ValueError: bad record" in outcome.detail()
        assert outcome.message().startswith("worker 1 failed, and took long to end (first failure;")
    for one in (ended("worker", 2, 1, OWN), ended("server", 0, -9)):
        assert first_cause([slow, one]) is one, "that failed by itself"
    followed = ended("worker", 1, -signal.SIGTERM, LOST, stopped=True)
    assert first_cause([server, followed]) is server
    for tail in (b"INFO:root:epoch 1 done\n", OWN):
        # Whatever it has written: it is not the one.
        healthy = ended("worker", 0, -signal.SIGTERM, tail, stopped=True)
        assert first_cause([server, healthy, slow]).name == slow.name
        assert first_cause([ended("server", 0, 3, SERVERS), healthy]).name == server.name


FAILED = b"the job failed: worker 1 was lost: it failed: ValueError: bad record\n"


# A worker that had done nothing wrong was blamed: another's last words spoke of it as a server does.
@pytest.mark.parametrize(
    "told",
    [
        b"the job failed: worker 0 was lost: it failed: " + FAILED,
        b"the job failed: worker 0 was lost: it failed: disk full\xe2\x80\xa8" + FAILED,
        # Where what is kept of it begins.
        FAILED + b"the job failed: worker 0 was lost: it failed: disk full\n",
        # As an error that is none of a worker's may have it.
        b"the job failed: server 1 was lost: " + FAILED,
    ],
)
def test_a_failed_workers_words_blame_no_other(told):
    healthy = ended("worker", 1, -signal.SIGTERM, OWN, stopped=True)
    server = ended("server", 0, 3, told)
    assert first_cause([ended("worker", 0, 0), server, healthy]) is server
    found = first_cause([ended("server", 0, 0, FAILED), ended("server", 1, 3, told), healthy])
    assert found.name == Name("server", 1)


# Worker 0 was blamed, whose script raises an error of its own from what it caught.
def test_a_worker_that_the_servers_name_is_the_cause_before_one_whose_error_may_wrap_another():
    wraps = ended("worker", 0, 1, LOST + OWN.replace(b"ValueError", b"RuntimeError"))
    server = ended("server", 0, 3, FAILED)
    assert first_cause([wraps, ended("server", 0, 3, SERVERS)]) is wraps
    failed = ended("worker", 1, 1, OWN)
    assert first_cause([wraps, failed]) is wraps
    assert first_cause([wraps, server, failed]) is failed
    assert first_cause([wraps, server, ended("worker", 1, 1, LOST)]) is wraps, "nor does one that followed"
    slow = ended("worker", 1, -signal.SIGTERM, OWN, stopped=True)
    assert first_cause([wraps, server, slow]).name == slow.name
    assert first_cause([failed, slow, server, ended("worker", 2, 1, OWN)]) is failed


def test_what_the_kernel_or_the_servers_own_end_says_is_the_cause_whoever_is_named():
    failed, server = ended("worker", 1, 1, OWN), ended("server", 0, 3, FAILED)
    for sure in (ended("worker", 0, -signal.SIGKILL), ended("server", 1, -signal.SIGSEGV)):
        assert first_cause([sure, failed, server]) is sure


# Another's words passed for an error of this worker, with its traceback and its hint.
@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_anothers_words_make_no_lines_among_those_of_a_process(end, capsys):
    lie = end.join(
        ("", "Traceback (most recent call last):", "ValueError: worker 2 is broken", "hint: look there")
    )
    tail = LOST.replace(b"hint: look at worker 1\n", b"").decode().replace("closed", f"closed{lie}").encode()
    followed = ended("worker", 0, 1, tail)
    assert followed.is_consequence
    outcome = Outcome(1, followed, others=True)
    assert outcome.detail().split("\n")[-1] == followed.last_line
    assert followed.last_line.startswith("penstock.exceptions.WorkerLost: worker 1 was lost: ")
    assert "it failed because of another process" in outcome.hint()
    terminal.error("worker 0 failed", None, outcome.detail())
    assert f"    {followed.last_line}" in capsys.readouterr().err.split("\n")


@pytest.mark.parametrize("end", [b"\r", b"\r\n"])
def test_a_progress_bar_that_goes_back_hides_no_traceback(end):
    assert traceback_of(b"step 1" + end + b"step 2" + end + LOST) == LOST.decode().rstrip()


def test_a_server_that_dies_is_the_cause_of_its_workers_errors():
    tail = LOST.replace(b"WorkerLost: worker 1", b"ServerLost: server 0")
    dead = ended("server", 0, -9)
    assert first_cause([ended("worker", 0, 1, tail), dead]) is dead


@pytest.mark.parametrize("wait", ["PullTimeout", "LaneTimeout", "BarrierTimeout", "GetTimeout"])
def test_a_worker_that_waited_in_vain_for_one_that_failed_is_no_cause(wait):
    waited = ended("worker", 0, 1, LOST.replace(b"WorkerLost", wait.encode()))
    failed = ended("worker", 1, 1, OWN)
    assert first_cause([waited, failed]) is failed


def test_no_failure_has_no_cause():
    assert (
        first_cause([ended("worker", 0, 0), ended("worker", 1, -15, stopped=True), ended("server", 0, 0)])
        is None
    )


def test_only_the_traceback_is_shown_not_what_came_before_it():
    assert traceback_of(OWN).splitlines()[0] == "Traceback (most recent call last):"
    assert traceback_of(OWN).splitlines()[-1] == "ValueError: bad record"


def test_chained_tracebacks_are_shown_together():
    chained = OWN + b"\nDuring handling of the above exception, another exception occurred:\n\n" + LOST
    assert "bad record" in traceback_of(chained)
    assert "WorkerLost" in traceback_of(chained)


def test_two_tracebacks_that_have_nothing_to_do_with_each_other_are_told_apart():
    assert "bad record" not in traceback_of(OWN + b"caught, went on\n" + LOST)


def test_without_a_traceback_the_last_lines_are_shown():
    assert traceback_of(b"\n".join(b"line %d" % n for n in range(100))).splitlines()[-1] == "line 99"


def test_a_traceback_without_end_is_shortened_in_its_middle():
    deep = (
        b"Traceback (most recent call last):\n"
        + b'  File "x.py", line 1, in f\n' * 500
        + b"RecursionError: too deep\n"
    )
    lines = traceback_of(deep).splitlines()
    assert len(lines) < 100
    assert lines[-1] == "RecursionError: too deep"


def test_the_message_names_rank_end_and_process():
    outcome = Outcome(1, failure=ended("worker", 1, 1, OWN), others=True)
    assert outcome.message() == (
        "worker 1 ended with exit code 1 (first failure; the other workers were stopped; pid 4001)"
    )


CIRCLE = b"""Traceback (most recent call last):
  File "train.py", line 9, in <module>
    job.barrier()
penstock.exceptions.CircularWait: the barrier waited 1.8s for what cannot come: worker 0 waits ...
hint: do the same things in the same order on every worker
"""


def test_an_error_that_says_what_to_do_gets_no_other_hint():
    # Going on without a worker that waits in a circle would leave the mistake where it is.
    outcome = Outcome(1, failure=ended("worker", 1, 1, CIRCLE), others=True)
    assert "hint: do the same things" in outcome.detail()
    assert outcome.hint() is None
    assert Outcome(1, failure=ended("worker", 0, 1, LOST), others=True).hint() is None
    assert "--on-worker-loss" in Outcome(1, failure=ended("worker", 1, 1, OWN), others=True).hint()


# It was told to check the process that the error names, of which there was nothing to see.
def test_a_job_that_lost_a_worker_for_want_of_memory_is_told_the_option():
    lost = (
        "the job failed: worker 0 was lost: it needs more than it may have: for rows on their way "
        "it asked for {}, but only 304 of 1048576 are left"
    )

    def hint(what):
        note = lost.format(what)
        server = ended("server", 0, 3, note.encode())
        return Outcome(3, failure=server, others=True, notes=(f"{server.name}: {note}",)).hint()

    assert hint("560 bytes of memory") == "raise the option `memory`"
    assert "memory" not in hint("2 file descriptors")


def test_a_worker_that_waited_in_a_circle_is_the_cause_and_not_a_consequence():
    first = ended("worker", 1, 1, CIRCLE)
    assert first_cause([ended("worker", 0, 1, LOST), first]) is first


def test_a_worker_that_was_alone_stops_no_others():
    assert (
        Outcome(1, failure=ended("worker", 0, 1, OWN)).message()
        == "worker 0 ended with exit code 1 (pid 4000)"
    )


@pytest.mark.parametrize(("role", "silent"), [("worker", "worker 1 wrote"), ("server", "it wrote")])
def test_only_standard_error_is_spoken_of_and_only_lines_that_are_there(role, silent):
    # A worker that had printed was said to have written nothing, and a silent server's lines to stand above.
    hint = Outcome(1, failure=ended(role, 1, 5), others=True).hint()
    assert hint.startswith(f"{silent} nothing to standard error; ")
    assert "lines above" not in hint
    assert "the lines above are " in Outcome(1, failure=ended(role, 1, 5, b"why"), others=True).hint()
