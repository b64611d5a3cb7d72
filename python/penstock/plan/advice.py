"""Which topology to take, and why, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.plan.cost import Prices
from penstock.plan.model import Job, Outcome
from penstock.units import format_rate, format_ratio

CLOSE = 0.01
"""Throughput for the money that is this near to the best counts as equal: prices are not better known."""


@dataclass(frozen=True)
class Advice:
    """What to take."""

    outcome: Outcome
    reason: str


def recommend(job: Job, prices: Prices, outcomes: Sequence[Outcome], most_servers: int) -> Advice:
    """
    The topology with the most throughput for the money; of those within 1 %, the one with the fewest hosts,
    then the one whose busiest link has the least to do.

    Parameters
    ----------
    job, prices, outcomes
        The job, what hosts cost, and what each topology makes of the job.
    most_servers
        A job's most: a topology with more cannot be started.
    """
    possible = [outcome for outcome in outcomes if outcome.servers <= most_servers]
    worth = {outcome.topology: _worth(job, prices, outcome) for outcome in possible}
    best = max(worth.values())
    near = [outcome for outcome in possible if worth[outcome.topology] >= best * (1 - CLOSE)]
    chosen = min(near, key=lambda outcome: (outcome.hosts, outcome.communication))
    return Advice(chosen, f"{chosen.topology.value} ({_placed(chosen)}): {_why(possible, near, chosen)}.")


def _worth(job: Job, prices: Prices, outcome: Outcome) -> float:
    found = prices.per_1000(job, outcome)
    return outcome.throughput if found is None else found


def _placed(outcome: Outcome) -> str:
    if outcome.server_hosts > 1:
        return f"{outcome.servers} servers, on hosts of their own"
    # One server on one host of its own is what `ncc` says, whatever it is called.
    return "one server, on a host of its own" if outcome.server_hosts else outcome.topology.words


def _why(possible: Sequence[Outcome], near: Sequence[Outcome], chosen: Outcome) -> str:
    if chosen.hidden:
        if all(load.nbytes == 0 for load in chosen.loads):
            return "nothing goes over the network"
        need = f"{format_rate(chosen.each_way)} of {format_rate(chosen.busiest.link)} each way"
        also = "for the most throughput per dollar" if chosen.server_hosts else "without another host"
        return f"it hides communication, needing {need}, {also}"
    slow = (
        f"a step takes {format_ratio(chosen.step / chosen.compute)} its computation until {_lacking(chosen)}"
    )
    hiding = [outcome for outcome in possible if outcome.hidden]
    if hiding:
        other = min(hiding, key=lambda outcome: outcome.hosts).topology.value
        return (
            f"it gives the most throughput per dollar, though {slow}; "
            f"{other} hides communication, for more money than that earns"
        )
    few = " with the fewest hosts" if any(other.hosts > chosen.hosts for other in near) else ""
    return f"none hides communication here; this one gives the most throughput per dollar{few}, but {slow}"


def _lacking(outcome: Outcome) -> str:
    """The hosts whose links are too slow, and what they need."""
    slow = [load for load in outcome.loads if load.time > outcome.compute]
    needs = (f"{load.host} has {format_rate(8 * load.nbytes / outcome.compute)}" for load in slow)
    return " and ".join(needs) + " each way"
