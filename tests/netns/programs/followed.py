"""
The only worker of a job, whose filters follow the network: each value beside a few lines of NumPy, with the
bound that `pressure` says was in force.

    followed.py DECAY     DECAY: none or sqrt

Ends with "result", the changes of pushes and of broadcasts.
"""

import sys

import numpy as np

import penstock as ps

SIZE, UP, MOST = 300_000, 2.0, 200
decay = None if sys.argv[1] == "none" else sys.argv[1]
given = ps.DVF(0.0, UP, decay=decay)
with ps.init() as job:
    rule = ps.SGD(1.0)
    w = job.tensor("w", shape=SIZE, reduce="sum", optimizer=rule, filter=ps.Filters(push=given))
    v = job.tensor("v", shape=SIZE, reduce="sum", optimizer=rule, filter=ps.Filters(broadcast=given))
    draw = np.random.default_rng(1)
    # Eighths, so that sums are exact.
    numbers = [draw.integers(-24, 25, SIZE).astype(np.float32) / 8 for _ in range(4)]
    seen, read, beyond = [], [], 0
    # A few steps beyond the first change of both directions.
    while beyond < 5:
        assert len(seen) < MOST, (w.pressure(), v.pressure())
        w.push(numbers[len(seen) % 4])
        v.push(numbers[len(seen) % 4])
        job.clock()
        seen.append(w.pull().copy())
        read.append(v.pull().copy())
        values = [change for shard in v.pressure().broadcast.values() for change in shard]
        beyond += bool(w.pressure().push and values)
    changes = w.pressure().push
    assert all(change.slowest > 0 and change.busy > 0 for change in (*changes, *values))

    # Equations 6 and 10.
    shares = {change.at: change.share for change in changes}
    carry, value, whole = (np.zeros(SIZE, np.float32) for _ in range(3))
    share, held, lagged = 0.0, 0, 0
    for clock, now in enumerate(seen):
        share = shares.get(clock, share)
        bound = np.float32(UP * share / (np.sqrt(clock + 1) if decay else 1))
        due = numbers[clock % 4] + carry
        sent = np.where(np.abs(due) > bound, due, 0) if share else due
        carry = due - sent
        value -= sent
        whole -= numbers[clock % 4]
        np.testing.assert_array_equal(now, value, err_msg=f"{clock}, changed {shares}")
        assert np.abs(read[clock] - whole).max() <= UP
        held += np.count_nonzero(carry)
        lagged += np.count_nonzero(read[clock] != whole)
    assert w.held_back.elements == np.count_nonzero(carry)
    assert held > 0, "nothing was ever held back of pushes"
    assert lagged > 0, "nor of the value"
    w.flush()
    v.flush()
    job.clock()
    for flushed in (w.pull(), v.pull(), v.pull(exact=True)):
        np.testing.assert_array_equal(flushed, whole)
    print("result", len(changes), len(values), flush=True)
