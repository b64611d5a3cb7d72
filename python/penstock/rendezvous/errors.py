"""Errors of the rendezvous."""

from __future__ import annotations

from penstock.exceptions import DeadlineExceeded


class RendezvousTimeout(DeadlineExceeded):
    """
    Not every process of the job came to the rendezvous in time; `.missing` holds their ranks.

    It is empty where this process reached rank 0 and rank 0 did not say in time which ranks it waits for.
    """
