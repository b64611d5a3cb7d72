"""
The least time of an exchange that the links allow: each byte once over the narrowest link, both directions at
once.

N workers push M bytes each and pull M bytes each; every host has one link of B bits a second, each way. What
a worker and a server on one host exchange does not touch the link.

| topology | busiest link | bits each way | time |
|---|---|---|---|
| ncc | the server's: every gradient in, every model out | 8 N M | 8 N M / B |
| cc | the same, without the worker beside it | 8 (N - 1) M | 8 (N - 1) M / B |
| ncs | a server's N M / S, or a worker's M | 8 M max(N / S, 1) | 8 M max(N / S, 1) / B |
| cs | each host's: its worker's (N - 1) / N M, and its server's | 16 M (N - 1) / N | 16 M (N - 1) / (N B) |

These are figure 4 of PHub (section 2.1) for one exchange, without compute. An all-reduce among N hosts moves
at least 2 (N - 1) / N M each way over every link, as cs does.
"""

from __future__ import annotations

TOPOLOGIES = ("ncc", "cc", "ncs", "cs")


def seconds(topology: str, nbytes: int, workers: int, servers: int, rate: int) -> float:
    """
    The least time of an exchange.

    Parameters
    ----------
    topology
        ncc, cc, ncs or cs.
    nbytes
        Bytes of the model.
    workers, servers
        How many; `servers` counts for ncs only.
    rate
        Bits per second of each link, each way.

    Examples
    --------
    >>> round(seconds("ncc", 64 << 20, 2, 1, 10**9), 4)
    1.0737
    >>> seconds("cs", 125_000_000, 2, 2, 10**9)
    1.0
    """
    bits = 8 * nbytes
    factors = {
        "ncc": float(workers),
        "cc": float(workers - 1),
        "ncs": max(workers / servers, 1.0),
        "cs": 2 * (workers - 1) / workers,
    }
    return factors[topology] * bits / rate
