"""
`penstock bench torch`, a training step beside DistributedDataParallel's; `penstock bench jax`, one of JAX.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli import terminal
from penstock.cli.numbers import count, counts, names
from penstock.launch.ranks import RanksError
from penstock_bench.cli.common import distance, failed, prepare_files, progress
from penstock_bench.training.names import (
    ALONE,
    JAX_MODELS,
    MODELS,
    MORE_SYSTEMS,
    OURS,
    OVERHEADS,
    SYSTEMS,
    TENSOR_BYTES,
)

if TYPE_CHECKING:
    from penstock_bench.runner import Case
    from penstock_bench.training.report import Ideal
    from penstock_bench.training.systems import Trained

MOST_WORKERS = 32
LIMIT_REPEATS = 20

EXAMPLES = """\
  penstock bench torch                                      # a training step beside DistributedDataParallel
  penstock bench torch --model small --workers 2 --systems penstock,penstock-servers,ddp,ddp-view
  penstock bench torch --overhead tensors,bytes             # what a tensor and a byte cost more than alone
  penstock bench jax --workers 2                            # a compiled step of JAX beside the same alone"""


def torch(arguments: Sequence[str]) -> int:
    """`penstock bench torch`."""
    parser = terminal.Parser(
        "penstock bench torch",
        "The time of a training step: Penstock and DistributedDataParallel over Gloo in turns, one thread a\n"
        "worker, beside the computation alone and the gradients' bytes at the machine's limit.",
        EXAMPLES,
    )
    known = (*SYSTEMS, *MORE_SYSTEMS)
    parser.add_argument("--model", help=f"default {','.join(MODELS)}")
    parser.add_argument(
        "--overhead",
        metavar="WHAT",
        help="in place of models: what each of the 'tensors' and 'bytes' costs, over sweeps of them",
    )
    parser.add_argument("--workers", default="2,4", help="such as 1,2,4; default 2,4")
    parser.add_argument(
        "--systems",
        default=",".join(SYSTEMS),
        help=f"default {','.join(SYSTEMS)}; also {', '.join(MORE_SYSTEMS)}",
    )
    parser.add_argument("--rounds", default="5", help="turns of each system; default 5")
    parser.add_argument("--repeats", default="10", help="steps in a turn; default 10")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.set_defaults(plot=None)
    given = parser.parse_args(arguments)
    if given.model is not None and given.overhead is not None:
        terminal.refuse(
            "--model and --overhead exclude each other",
            "an overhead is measured over models of its own",
        )
    models = list(MODELS) if given.model is None else names(given.model, "model", tuple(MODELS))
    overheads = [] if given.overhead is None else names(given.overhead, "overhead", tuple(OVERHEADS))
    workers = counts(given.workers, "--workers", MOST_WORKERS)
    systems = names(given.systems, "system", known)
    rounds = count(given.rounds, "--rounds", 1000)
    repeats = count(given.repeats, "--repeats", 1_000_000)
    prepare_files(given)

    from penstock_bench.runner import machine

    if overheads:
        return _overheads(overheads, workers, systems, rounds, repeats, given.json)
    documents: list[dict[str, Any]] = []
    bad = False
    for number in workers:
        for model in models:
            try:
                measured = _measure(model, number, systems, rounds, repeats)
            except RanksError as error:
                return failed(error)
            bad |= bool(measured["failed"])
            documents.append(measured["document"])
    from penstock_bench.training.report import LEGEND

    terminal.say("\n" + LEGEND)
    if given.json:
        document = {"bench": "torch", "cases": documents, "machine": machine(distance)}
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(bad)


def _overheads(
    overheads: Sequence[str],
    workers: Sequence[int],
    systems: Sequence[str],
    rounds: int,
    repeats: int,
    path: Path | None,
) -> int:
    """Measures sweeps, and says them."""
    from penstock_bench.runner import machine
    from penstock_bench.training import overhead

    documents: list[dict[str, Any]] = []
    bad = False
    for number in workers:
        for what in overheads:
            points = []
            for amount in OVERHEADS[what]:
                nbytes = amount if what == "bytes" else amount * TENSOR_BYTES
                try:
                    case, ideal, parts = _timed(f"{what}:{amount}", nbytes, number, systems, rounds, repeats)
                except RanksError as error:
                    return failed(error)
                bad |= bool(case.failed)
                points.append(overhead.point(amount, case, ideal, parts))
            copy = overhead.copy_time(OVERHEADS[what]) if what == "bytes" else None
            terminal.say(overhead.said(what, number, points, copy))
            documents.append(overhead.document(what, number, points, copy))
    terminal.say("\n" + overhead.LEGEND)
    if path:
        document = {"bench": "torch", "overheads": documents, "machine": machine(distance)}
        path.write_text(json.dumps(document, indent=1) + "\n")
    return int(bad)


def _measure(model: str, workers: int, systems: Sequence[str], rounds: int, repeats: int) -> dict[str, Any]:
    """Measures a model on some workers, and says it. Raises RanksError if the ideal was not measured."""
    from penstock_bench.training import report
    from penstock_bench.training.models import task_of

    case, ideal, parts = _timed(model, MODELS[model], workers, systems, rounds, repeats)
    measured = report.lines(case, ideal, parts)
    terminal.say(report.said(case, task_of(model).what, ideal, measured))
    return {"failed": case.failed, "document": report.document(case, model, ideal, measured)}


def _timed(
    model: str, nbytes: int, workers: int, systems: Sequence[str], rounds: int, repeats: int
) -> tuple[Case, Ideal, dict[str, dict[str, list[float]]]]:
    """A case, measured; its ideal; and the parts of each system's steps, by turn."""
    from penstock_bench import runner
    from penstock_bench.training.systems import Answer, Training

    case = runner.Case(nbytes, workers)
    answer = Answer(model, workers)
    # DistributedDataParallel is opened first: the others are compared with it.
    order = [ALONE, *sorted(systems, key=lambda name: not name.startswith("ddp"))]
    turns = [Training(name, answer) for name in order]
    try:
        _in_turns(case, turns, rounds, repeats)
    finally:
        answer.end()
    return case, _ideal(case, model), {turn.name: turn.parts for turn in turns}


def _in_turns(case: Case, turns: Sequence[Trained], rounds: int, repeats: int) -> None:
    """Measures the systems, and ends them."""
    from penstock_bench import runner

    try:
        runner.measure(
            case,
            turns,
            rounds=rounds,
            repeats=repeats,
            distance=distance,
            busy=runner.busy_cores,
            note=progress,
        )
    finally:
        progress("")
        for turn in turns:
            turn.end()


def _ideal(case: Case, model: str) -> Ideal:
    """Of a case that was measured. Raises RanksError if the computation alone was not."""
    from penstock_bench.training import report

    spreads = case.spreads()
    if ALONE not in spreads:
        raise RanksError(f"{model}: the computation alone was not measured: {case.absent[ALONE]}")
    return report.Ideal(spreads[ALONE], _limit(case.nbytes, case.workers))


def _limit(nbytes: int, workers: int) -> float:
    """Seconds of the gradients' sum in vector code over plain memory, on all cores."""
    from penstock import _core

    return statistics.median(
        _core.limit_pushpull(nbytes, workers, len(os.sched_getaffinity(0)), LIMIT_REPEATS)
    )


def jax(arguments: Sequence[str]) -> int:
    """`penstock bench jax`."""
    parser = terminal.Parser(
        "penstock bench jax",
        "The time of a compiled training step of JAX that averages its gradients, beside the computation\n"
        "alone and the gradients' bytes at the machine's limit.",
        EXAMPLES,
    )
    parser.add_argument("--model", default=",".join(JAX_MODELS), help=f"default {','.join(JAX_MODELS)}")
    parser.add_argument("--workers", default="2", help="such as 1,2,4; default 2")
    parser.add_argument("--rounds", default="5", help="turns of each system; default 5")
    parser.add_argument("--repeats", default="20", help="steps in a turn; default 20")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.set_defaults(plot=None)
    given = parser.parse_args(arguments)
    models = names(given.model, "model", tuple(JAX_MODELS))
    workers = counts(given.workers, "--workers", MOST_WORKERS)
    rounds = count(given.rounds, "--rounds", 1000)
    repeats = count(given.repeats, "--repeats", 1_000_000)
    prepare_files(given)

    from penstock_bench import runner
    from penstock_bench.training import jax_models, report
    from penstock_bench.training.systems import JaxTraining

    documents: list[dict[str, Any]] = []
    bad = False
    for number in workers:
        for model in models:
            case = runner.Case(JAX_MODELS[model], number)
            turns = [JaxTraining(name, model) for name in (ALONE, OURS)]
            _in_turns(case, turns, rounds, repeats)
            try:
                ideal = _ideal(case, model)
            except RanksError as error:
                return failed(error)
            measured = report.lines(case, ideal, {turn.name: turn.parts for turn in turns})
            terminal.say(report.said(case, jax_models.task_of(model).what, ideal, measured))
            documents.append(report.document(case, model, ideal, measured))
            bad |= bool(case.failed)
    terminal.say("\n" + report.JAX_LEGEND)
    if given.json:
        document = {"bench": "jax", "cases": documents, "machine": runner.machine(distance)}
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(bad)


BENCHES = {"torch": torch, "jax": jax}
