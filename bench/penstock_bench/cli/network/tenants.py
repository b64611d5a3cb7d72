"""`penstock bench tenants`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli import terminal
from penstock.cli.numbers import count, counts
from penstock.units import format_size, parse_bytes
from penstock_bench.cli.common import prepare_files
from penstock_bench.cli.network.arguments import EXAMPLES, MOST_ROUNDS, add_links, add_rounds, security
from penstock_bench.cli.network.hosts import place, write


def run(arguments: Sequence[str]) -> int:
    """`penstock bench tenants`."""
    from penstock_bench.network import report
    from penstock_bench.network import tenants as measuring

    parser = terminal.Parser(
        "penstock bench tenants",
        "Jobs that share one server (PHub, 4.8): what each moves, against its fair share.",
        EXAMPLES,
    )
    parser.add_argument("--jobs", default="1,2,4,8", help="how many at once; default 1,2,4,8")
    parser.add_argument("--greedy", action="store_true", help="the last job has four times the workers")
    parser.add_argument("--size", default="4MiB", help="bytes of each job's tensor; default 4MiB")
    parser.add_argument("--seconds", default="5", help="of each measurement; default 5")
    add_links(parser)
    add_rounds(parser)
    given = parser.parse_args(arguments)
    jobs, seconds = counts(given.jobs, "--jobs", 16), count(given.seconds, "--seconds", 3600)
    if given.greedy and min(jobs) < 2:
        terminal.refuse("a greedy job needs another beside it", "--jobs 2 --greedy")
    size, chosen = parse_bytes(given.size, "--size", of="float32"), security(given)
    rounds = count(given.rounds, "--rounds", MOST_ROUNDS)
    prepare_files(given)
    with place(given, max(jobs) + 1) as where:
        found = measuring.run(where, jobs, size, seconds, rounds, chosen, greedy=given.greedy)
    terminal.say(
        f"tenants, {format_size(size)} f32 a job, 1 worker a job"
        f"{' (the last: 4)' if given.greedy else ''}, {seconds} s, {rounds} rounds"
        f"{', links of ' + given.rate if given.rate else ''}"
    )
    alone = found.alone
    rows = [["jobs", "together", "lost to sharing", "each, of its fair share: least", "median", "most"]]
    rows[0].append(report.PROCESSOR)
    for number, rates in found.by_jobs.items():
        together = sum(rates)
        fair = together / number
        shares = sorted(rate / fair for rate in rates)
        rows.append(
            [
                str(number),
                f"{together / 1e6:.1f} MB/s",
                f"{(1 - together / alone):.1%}",
                f"{shares[0]:.2f}",
                f"{shares[len(shares) // 2]:.2f}",
                f"{shares[-1]:.2f}",
                report.processor(found.processor_by_jobs[number]),
            ]
        )
    terminal.say(report.columns(rows))
    terminal.say(
        f"  one alone: {alone / 1e6:.1f} MB/s, {report.processor(found.processor_alone)} {report.PROCESSOR}"
    )
    if given.greedy:
        for number, rates in found.by_jobs.items():
            fair = sum(rates) / number
            terminal.say(
                f"  {number} jobs: the greedy one has {rates[-1] / fair:.2f} of its share, "
                f"the others at least {min(rates[:-1]) / fair:.2f} of theirs"
            )
    entries = [
        {"jobs": n, "bytes_per_second": rates, "processor_s_per_gb": found.processor_by_jobs[n]}
        for n, rates in found.by_jobs.items()
    ]
    case = {"alone": alone, "alone_processor_s_per_gb": found.processor_alone, "greedy": given.greedy}
    write(given, "tenants", [{**case, "runs": entries}])
    if given.plot:
        from penstock_bench.network import plot

        plot.tenants(found, given.plot)
    return 0
