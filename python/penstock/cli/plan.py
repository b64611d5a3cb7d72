"""`penstock plan`: what bandwidth a job needs in each topology, and which to take."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.cli import extra, terminal, trees
from penstock.cli.numbers import of_bytes, real, within
from penstock.plan import report, source
from penstock.plan.advice import recommend
from penstock.plan.cost import GPU, SERVER, WORKER, Gear, Prices, gear_for
from penstock.plan.model import Job, evaluate_all
from penstock.plan.racks import Racks, judge
from penstock.plan.source import Source
from penstock.units import parse_count, parse_money, parse_rate, parse_time

EXAMPLES = """\
  penstock plan --model resnet50 --workers 8 --link 10gbit
  penstock plan --parameters 25.6M --compute 161ms --batch 32 --workers 8 --link 25gbit --servers 4
  penstock plan --torch my.models:make --compute 90ms --workers 16 --link 10gbit --racks 2 --core 40gbit
  penstock plan --tree auto --hosts 16 --racks 4 --bytes 256MiB
  penstock plan --paper table2"""

_SOURCES = ("parameters", "bytes", "model", "torch")
MOST_BATCH = 10**9
MOST_GPUS = 1024
MOST_OVERSUBSCRIPTION = 1000.0


def parser() -> terminal.Parser:
    """The command's arguments."""
    result = terminal.Parser(
        "penstock plan",
        "Computes the bandwidth that a job needs in each topology so that communication hides behind\n"
        "computation, and what a step then takes and costs; recommends a topology.",
        EXAMPLES,
    )
    result.usage = (
        "penstock plan (--model NAME | --parameters N | --bytes SIZE | --torch MODULE:CALLABLE)\n"
        "                     --workers N --link RATE [--compute TIME] [options]\n"
        "       penstock plan --tree SHAPE --hosts N --bytes SIZE [options]\n"
        "       penstock plan --paper {table2,table5} [--json]"
    )
    model = result.add_argument_group("the model, one of")
    model.add_argument(
        "--model", metavar="NAME", help="a network of PHub's table 3, with its size, time and batch"
    )
    model.add_argument("--parameters", metavar="N", help="so many elements, such as 25.6M")
    model.add_argument("--bytes", metavar="SIZE", help="so many bytes, such as 97MB")
    model.add_argument(
        "--torch",
        metavar="MODULE:CALLABLE",
        help="the trainable parameters of the torch module that it returns",
    )
    job = result.add_argument_group("the job")
    job.add_argument(
        "--dtype", metavar="TYPE", help="element type (default float32, or the torch module's own)"
    )
    job.add_argument("-n", "--workers", metavar="N", help="hosts that compute")
    job.add_argument(
        "--compute", metavar="TIME", help="computation per step, such as 161ms (--model knows it)"
    )
    job.add_argument("--batch", metavar="N", help="samples of one worker per step (--model knows it)")
    job.add_argument("-s", "--servers", metavar="K", help="servers of ncs (default: as many as workers)")
    network = result.add_argument_group(
        "the network (rates as for tc: 10gbit; 10gbps is ten gigabytes per second)"
    )
    network.add_argument("--link", metavar="RATE", help="bandwidth of a host, in each direction")
    network.add_argument(
        "--server-link", metavar="RATE", help="bandwidth of a host with only a server (default --link)"
    )
    network.add_argument("--racks", metavar="R", help="whether to reduce inside each of R racks first")
    network.add_argument("--core", metavar="RATE", help="bandwidth between a rack and the core; with --racks")
    prices = result.add_argument_group("prices, in dollars (default: PHub's)")
    prices.add_argument("--worker-price", metavar="USD", help=f"a worker's host without GPUs ({WORKER:g})")
    prices.add_argument("--gpu-price", metavar="USD", help=f"a GPU ({GPU:g})")
    prices.add_argument("--gpus", metavar="N", help="GPUs of a worker (1)")
    prices.add_argument(
        "--server-price", metavar="USD", help=f"a server's own host without cards ({SERVER:g})"
    )
    prices.add_argument("--nic-price", metavar="USD", help="a worker's network port (260; 795 above 25gbit)")
    prices.add_argument(
        "--server-nic-price", metavar="USD", help="a server's network port (162.5; 795 above 25gbit)"
    )
    prices.add_argument("--cable-price", metavar="USD", help="a cable (31.25; 94 above 25gbit)")
    prices.add_argument("--port-price", metavar="USD", help="a switch port (164.66; 658.66 above 25gbit)")
    prices.add_argument(
        "--oversubscription",
        metavar="X",
        help="oversubscription of a rack's uplink: its hosts' bandwidth over its own (1)",
    )
    trees.add(result)
    result.add_argument("--paper", metavar="TABLE", help="print the paper's table2 or table5 and ours")
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def main(arguments: Sequence[str]) -> int:
    """
    Runs the command.

    Raises
    ------
    OptionError
        The command line is wrong.
    """
    given = parser().parse_args(_joined(arguments))
    if given.paper is not None:
        return _paper(given)
    if given.tree is not None:
        return trees.main(given)
    trees.refuse_alone(given)
    plan = make_plan(given)
    terminal.say(json.dumps(report.document(plan), indent=2) if given.json else report.text(plan))
    return 0


def _joined(arguments: Sequence[str]) -> list[str]:
    """`--link -1gbit` as `--link=-1gbit`: else argparse takes the value for an option and misses one."""
    result: list[str] = []
    for word in arguments:
        if re.match(r"-[\d.]", word) and result and re.fullmatch(r"-(-[a-z-]+|[ns])", result[-1]):
            result[-1] += f"={word}" if result[-1].startswith("--") else word
        else:
            result.append(word)
    return result


def _paper(given: argparse.Namespace) -> int:
    others = [name for name, value in vars(given).items() if value and name not in ("paper", "json")]
    if others:
        flag = "--" + others[0].replace("_", "-")
        terminal.refuse(f"{flag} has no meaning with --paper", "the paper's tables have their own inputs")
    print_table = extra.command("paper", "penstock plan --paper")
    return print_table([given.paper, *(["--json"] if given.json else [])])


def make_plan(given: argparse.Namespace) -> report.Plan:
    """
    The plan that a command line asks for.

    Raises
    ------
    OptionError
        Something is missing, or cannot be.
    """
    from penstock import _core

    # The cheap checks first: making a torch module may take long.
    _one_source(given)
    workers = _number(
        _needed(given.workers, "--workers", "the hosts that compute: 8"), "--workers", _core.MAX_WORKERS
    )
    link = parse_rate(
        _needed(given.link, "--link", "the bandwidth of a host in each direction: 10gbit"), "--link"
    )
    server_link = link if given.server_link is None else parse_rate(given.server_link, "--server-link")
    most = int(_core.MAX_SERVERS)
    servers = min(workers, most) if given.servers is None else _number(given.servers, "--servers", most)
    prices = _prices(given, link)
    compute = None if given.compute is None else parse_time(given.compute, "--compute")
    batch = None if given.batch is None else _number(given.batch, "--batch", MOST_BATCH)
    if compute is None and given.model is None:
        _needed(None, "--compute", "how long a worker computes in each step: 161ms")
    _racks_complete(given)

    model = _source(given)
    job = Job(
        nbytes=model.nbytes,
        workers=workers,
        compute=compute or model.compute or 0.0,
        link=link,
        server_link=server_link,
        servers=servers,
        batch=batch or model.batch,
    )
    outcomes = evaluate_all(job)
    return report.Plan(
        source=model,
        job=job,
        prices=prices,
        outcomes=outcomes,
        advice=recommend(job, prices, outcomes, most),
        most_servers=most,
        racks=_racks(given, job),
        notes=_notes(given),
    )


def _one_source(given: argparse.Namespace) -> None:
    named = [f"--{name}" for name in _SOURCES if getattr(given, name) is not None]
    if not named:
        terminal.refuse(
            "no model was given", "give --model NAME, --parameters N, --bytes SIZE or --torch MODULE:CALLABLE"
        )
    if len(named) > 1:
        terminal.refuse(f"{' and '.join(named)} name a model each", "give one of them")


def _source(given: argparse.Namespace) -> Source:
    readers: dict[str, Callable[[str, str | None], Source]] = {
        "parameters": source.of_parameters,
        "bytes": source.of_bytes,
        "model": source.of_network,
        "torch": source.of_torch,
    }
    name = next(name for name in _SOURCES if getattr(given, name) is not None)
    return readers[name](getattr(given, name), given.dtype)


def _prices(given: argparse.Namespace, link: int) -> Prices:
    def price(flag: str, default: float) -> float:
        text = getattr(given, flag.removeprefix("--").replace("-", "_"))
        return default if text is None else parse_money(text, flag)

    gear: Gear = gear_for(link)
    gear = replace(
        gear,
        nic=price("--nic-price", gear.nic),
        server_nic=price("--server-nic-price", gear.server_nic),
        cable=price("--cable-price", gear.cable),
        port=price("--port-price", gear.port),
    )
    return Prices(
        gear=gear,
        worker=price("--worker-price", WORKER),
        gpu=price("--gpu-price", GPU),
        gpus=1 if given.gpus is None else _number(given.gpus, "--gpus", MOST_GPUS),
        server=price("--server-price", SERVER),
        oversubscription=_oversubscription(given.oversubscription),
    )


def _oversubscription(text: str | None) -> float:
    hint = "1 for none, 2 if a rack's hosts together have twice the bandwidth of its uplink"
    if text is None:
        return 1.0
    return real(text.removesuffix(":1"), "--oversubscription", (1, MOST_OVERSUBSCRIPTION), hint)


def _racks_complete(given: argparse.Namespace) -> None:
    if given.racks is not None and given.core is None:
        terminal.refuse(
            "--racks needs --core", "the bandwidth between a rack and the network's core: --core 40gbit"
        )
    if given.core is not None and given.racks is None:
        terminal.refuse("--core needs --racks", "the number of racks that the workers are in: --racks 2")


def _racks(given: argparse.Namespace, job: Job) -> Racks | None:
    if given.racks is None:
        return None
    return judge(job, _number(given.racks, "--racks", job.workers), parse_rate(given.core, "--core"))


def _notes(given: argparse.Namespace) -> list[str]:
    """What a user may have meant otherwise."""
    rates = (("--link", given.link), ("--server-link", given.server_link), ("--core", given.core))
    return [note for flag, text in rates if text is not None for note in of_bytes(text, flag)]


def _needed(text: str | None, flag: str, what: str) -> str:
    if text is None:
        terminal.refuse(f"{flag} is missing", what)
    return text


def _number(text: str, flag: str, most: int) -> int:
    return within(parse_count(text, flag), flag, most)
