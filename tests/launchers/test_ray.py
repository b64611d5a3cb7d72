"""`ps.ray.run` on a Ray instance of this host."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from groups import LINEAR, ROOT, Group

import penstock as ps

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install 'penstock-ps[ray]'", allow_module_level=True)

PRELUDE = f"""
import importlib.util, json, os, sys, time
import ray
import penstock as ps
import penstock.ray

spec = importlib.util.spec_from_file_location("linear", {LINEAR!r})
linear = importlib.util.module_from_spec(spec)
spec.loader.exec_module(linear)

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
"""


(PAGE,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "launchers" / "ray.md").read_text(), re.DOTALL)
"""The program that the page on Ray shows."""

DRIVER = """
def train():
    with ps.init() as job:
        w = job.tensor("w", shape=(100_000,), reduce="sum")
        w.push([job.rank + 1.0] * 100_000)
        job.clock()
        servers = len(os.environ["PENSTOCK_SERVERS"].split(","))
        return job.rank, job.size, float(w.pull()[0]), float(w.pull()[-1]), servers

found = {}
found["results"] = ps.ray.run(train, workers=2, servers=2)
found["again"] = ps.ray.run(lambda: linear.main(), workers=2, options={"transport": "tcp"})

def fails():
    job = ps.init()
    w = job.tensor("w", shape=(4,))
    if job.rank == 1:
        raise KeyError("no data")
    w.push([1, 1, 1, 1])
    job.clock()
    w.pull()

def dies():
    job = ps.init()
    if job.rank == 1:
        os._exit(3)
    job.barrier()

def hangs():
    with ps.init() as job:
        if job.rank == 1:
            import threading
            threading.Event().wait()

for function in (fails, dies, hangs):
    try:
        ps.ray.run(function, workers=2, timeout=12 if function is hangs else None)
    except Exception as error:
        found[function.__name__] = [type(error).__name__, str(error), error.__notes__[-1],
                                    getattr(error, "rank", None), getattr(error, "missing", None)]
began = time.monotonic()
try:
    ps.ray.run(fails, workers=50)
except ps.exceptions.OptionError as error:
    found["many"] = [str(error), time.monotonic() - began]
try:
    ps.ray.run(fails, workers=50, timeout=4)
except ps.exceptions.DeadlineExceeded as error:
    found["late"] = str(error)
# All that was taken is given back: a job that needs every core gets them.
def size():
    with ps.init() as job:
        return job.size

found["after"] = ps.ray.run(size, workers=3)
print(json.dumps(found))
"""


# One instance of Ray for all of it: each takes long to start.
def test_scripts_train_on_ray_and_failures_surface_and_leave_nothing_behind(group: Group, script) -> None:
    path = script("")
    Path(path).write_text(PRELUDE + PAGE + DRIVER)
    done = group.run(
        [sys.executable, path],
        RAY_TMPDIR=str(group.scratch / "ray"),
        HOME=str(group.scratch),  # where Ray keeps its token
        RAY_USAGE_STATS_ENABLED="0",
        PYTHONWARNINGS="ignore",
    )
    assert done.code == 0, done
    printed = done.out.splitlines()
    assert "[2.0, 2.0]" in printed  # as the page says
    found = json.loads(printed[-1])
    # With several servers; then the example, over TCP, as between hosts.
    assert found["results"] == [[0, 2, 3.0, 3.0, 2], [1, 2, 3.0, 3.0, 2]]
    assert found["again"] == [None, None]
    assert found["fails"] == ["KeyError", "'no data'", "raised by worker 1 of 2", None, None]
    kind, _, _, rank, _ = found["dies"]
    assert (kind, rank) == ("WorkerLost", 1)
    kind, text, _, _, missing = found["hangs"]
    assert (kind, missing) == ("DeadlineExceeded", [1])
    assert "for workers 1 to return" in text
    text, seconds = found["many"]
    assert "are 51 CPU, but Ray's cluster has " in text
    assert seconds < 10  # the start may take the deadline, a minute
    assert "Ray did not give 1 x {'CPU': 1} and 50 x {'CPU': 1}" in str(found["late"])
    # Long before it gives up: others may have taken the cluster.
    assert "still waiting for Ray to give 1 x {'CPU': 1} and 50 x {'CPU': 1}; gives up after 4 s" in done.err
    assert found["after"] == [3, 3, 3]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"workers": 0}, "workers to be a number from 1"),
        ({"workers": 1, "servers": 10**6}, "servers to be a number from 1"),
        ({"workers": 1, "resources_per_worker": {"GPU": -1}}, r"resources_per_worker\['GPU'\]"),
        ({"workers": 1, "options": {"leese": 3}}, "there is no option `leese`"),
        ({"workers": 1, "options": {"lease": -3}}, "lease"),
    ],
)
def test_what_cannot_be_is_refused_before_ray_is_touched(arguments, says: str) -> None:
    from penstock import ray

    with pytest.raises(ps.exceptions.OptionError, match=says):
        ray.run(lambda: None, **arguments)
    assert "ray" not in sys.modules
