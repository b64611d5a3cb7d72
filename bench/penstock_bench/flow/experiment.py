"""Which trainings are run, in which order, and the file that holds them, from which one can go on."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock_bench.flow import neighbours, report
from penstock_bench.flow.counters import set_apart
from penstock_bench.flow.systems import GLOO, PLAIN, named
from penstock_bench.flow.tasks import TASKS, Task
from penstock_bench.flow.training import Hosts, Trained, by_gloo, by_penstock
from penstock_bench.netns import NetworkTestbed
from penstock_bench.systems import BenchError

SCRIPTS = Path(__file__).parents[3] / "examples" / "flow"
"""The workloads, in the checkout that this package is installed from."""


@dataclass(frozen=True)
class Setting:
    """What all trainings of an experiment have in common."""

    task: str
    rate: int | None
    """Bits per second of each host's link; None: not shaped."""
    workers: int
    servers: int
    shared: bool
    """Whether competing flows come and go."""
    seed: int
    """Of those flows."""
    tls: bool = True
    options: str = ""
    """More of them for the script, behind the task's own."""
    chunk: str | None = None
    """Bytes of a chunk where values are filtered; None: the task's."""
    scripts: str = ""
    """What `fingerprint` says of the workload."""

    @property
    def workload(self) -> Task:
        """The task, with what the user has changed of it."""
        task = TASKS[self.task]
        arguments = f"{task.arguments} {self.options}".strip()
        return replace(task, arguments=arguments, chunk=self.chunk or task.chunk)

    def command(self, name: str, consistency: str) -> dict[str, Any]:
        """What a training is started with: options of the script, and variables of the environment."""
        task, system = self.workload, named(name)
        kind, _, slack = consistency.partition(":")
        options = task.options(longer=(name, consistency) != (PLAIN, "bsp"))
        options += ["--consistency", kind, *(["--slack", slack] if slack else [])]
        return {"options": options + system.arguments(task), "environment": system.environment(task)}


def fingerprint(scripts: Path, task: str) -> str:
    """Of the files that a task's training is made of: two that differ are two experiments."""
    files = (scripts / TASKS[task].script, scripts / "common.py")
    every = b"".join(path.read_bytes() for path in files if path.is_file())
    return hashlib.sha256(every).hexdigest()[:16]


@dataclass
class Experiment:
    """The trainings so far."""

    setting: Setting
    runs: dict[report.Key, list[Trained]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Systems that were not measured, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    """What the processes of a system that failed said last."""

    def wanted(
        self, systems: Collection[str], consistencies: Sequence[str], repeats: int
    ) -> list[report.Key]:
        """
        The trainings that are missing, in turns: whatever drifts on the machine drifts for all of them.
        Plain push and pull under BSP comes first, since everything is compared with it.
        """
        if GLOO in systems and "bsp" not in consistencies:
            self.absent[GLOO] = "an all-reduce is in step by itself: it is measured under bsp"
        keys = [
            (name, consistency)
            for consistency in dict.fromkeys(["bsp", *consistencies])
            for name in dict.fromkeys([PLAIN, *systems])
            if (consistency in consistencies and name in systems and (name != GLOO or consistency == "bsp"))
            or (name, consistency) == (PLAIN, "bsp")
        ]
        return [key for turn in range(repeats) for key in keys if len(self.runs.get(key, ())) <= turn]

    def document(self, machine: Mapping[str, object]) -> dict[str, Any]:
        """For the file."""
        measured = report.rows(self.runs) if (PLAIN, "bsp") in self.runs else []
        return {
            "bench": "flow",
            "machine": machine,
            "setting": asdict(self.setting),
            "objective": report.objective(self.runs) if measured else None,
            "rows": report.entries(measured),
            "overheads": [asdict(one) for one in report.overheads(self.runs)],
            "absent": self.absent,
            "runs": [
                {
                    "system": system,
                    "consistency": consistency,
                    **self.setting.command(system, consistency),
                    **trained.plain(),
                }
                for (system, consistency), every in self.runs.items()
                for trained in every
            ],
        }

    def take(self, document: Mapping[str, Any]) -> None:
        """
        Goes on from a file.

        Raises
        ------
        ValueError
            It is of another experiment, or of other filters, or none of ours.
        """
        if not isinstance(document, dict) or document.get("bench") != "flow":
            raise ValueError("it is no file of this benchmark")
        if document["setting"] != asdict(self.setting):
            raise ValueError(f"it was measured with {document['setting']}")
        for run in document["runs"]:
            command = self.setting.command(run["system"], run["consistency"])
            found = {name: run.get(name) for name in command}
            if found != command:
                raise ValueError(f"{run['system']} under {run['consistency']} was trained with {found}")
            self.runs.setdefault((run["system"], run["consistency"]), []).append(Trained.of(run))


def measure(
    experiment: Experiment,
    wanted: Sequence[report.Key],
    scripts: Path,
    *,
    note: Callable[[str], None],
    done: Callable[[], None],
) -> None:
    """
    Makes the trainings.

    Parameters
    ----------
    experiment
        Where they are put.
    wanted
        Which, in this order. A system that cannot be measured, or fails, is named in `experiment.absent`, and
        the others go on.
    scripts
        The folder of the workloads.
    note
        Told what goes on.
    done
        Called after each.
    """
    task = experiment.setting.workload
    with _hosts(experiment.setting) as hosts:
        for number, (name, consistency) in enumerate(wanted, 1):
            if name not in experiment.absent and (reason := named(name).missing(task)):
                experiment.absent[name] = reason
            if name in experiment.absent:
                continue
            note(f"{task.name}, {name} under {consistency}: training {number} of {len(wanted)}")
            try:
                trained = _train(hosts, experiment.setting, name, consistency, scripts / task.script)
            except BenchError as error:
                experiment.absent[name] = f"failed under {consistency}: {error}"
                experiment.failed[name] = error.detail
                continue
            experiment.runs.setdefault((name, consistency), []).append(trained)
            done()


@contextlib.contextmanager
def _hosts(setting: Setting) -> Iterator[Hosts]:
    ours = setting.workers + setting.servers
    with NetworkTestbed(hosts=ours * (2 if setting.shared else 1), rate=setting.rate) as testbed:
        others = tuple(range(ours, 2 * ours)) if setting.shared else ()
        if others:
            set_apart(testbed, range(ours), others)
        yield Hosts(testbed, setting.workers, setting.servers, others)


def _train(hosts: Hosts, setting: Setting, name: str, consistency: str, script: Path) -> Trained:
    command = setting.command(name, consistency)
    # Each training anew: the same flows from its start on.
    beside = neighbours.running(hosts.testbed, hosts.layout, setting.seed)
    with beside if setting.shared else contextlib.nullcontext():
        if name == GLOO:
            return by_gloo(hosts, script, command["options"])
        security = {} if setting.tls else {"PENSTOCK_SECURITY": "insecure"}
        return by_penstock(hosts, script, command["options"], {**security, **command["environment"]})


def write(path: Path, experiment: Experiment, machine: Mapping[str, object]) -> None:
    """Writes the file; whoever reads it meanwhile finds the one before."""
    whole = path.with_name(path.name + ".new")
    whole.write_text(json.dumps(experiment.document(machine), indent=1) + "\n")
    whole.replace(path)
