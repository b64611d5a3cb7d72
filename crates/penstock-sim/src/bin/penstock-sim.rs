//! Runs simulated jobs from seeds. docs/simulation.md explains what it prints.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use clap::{Parser, Subcommand, ValueEnum};
use penstock_sim::history::{Observation, Tally};
use penstock_sim::sabotage::Sabotage;
use penstock_sim::{Scenario, items, leases, rates};
use std::ops::Range;
use std::process::ExitCode;

/// Runs whole jobs on one thread, each from one seed, and checks what they promise.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Run this seed.
    #[arg(long, conflicts_with = "seeds", default_value_t = 0)]
    seed: u64,
    /// Run the seeds N up to, not including, M; stop at the first that fails.
    #[arg(long, value_name = "N..M", value_parser = seeds)]
    seeds: Option<Range<u64>>,
    /// Print the scenario and, unless with `--tables` or `--leases`, one line for everything that happens.
    #[arg(short, long)]
    verbose: bool,
    /// Run tables of items instead of jobs with tensors. Has seeds of its own.
    #[arg(long, conflicts_with = "sabotage")]
    tables: bool,
    /// Run no job, but a server and workers that watch each other: which silent ones are declared lost, and when. Has seeds of
    /// its own.
    #[arg(long, conflicts_with_all = ["sabotage", "tables"])]
    leases: bool,
    /// Run jobs in which workers are suspended, and their leases decide which of them are lost. Has seeds of its own.
    #[arg(long, conflicts_with_all = ["tables", "leases"])]
    suspended: bool,
    /// Run jobs in which values go from worker to worker. Has seeds of its own.
    #[arg(long, conflicts_with_all = ["tables", "leases", "suspended"])]
    trees: bool,
    /// Run jobs in which updates are sent of all tensors of which they can be. Has seeds of its own.
    #[arg(long, conflicts_with_all = ["tables", "leases", "suspended", "trees"])]
    updates: bool,
    /// Break a promise on purpose, to see a checker at work.
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// How long a value takes to all workers, along the planner's trees, over links with rates.
    Rates(rates::report::Arguments),
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    match ends {
        Some(range) if !range.is_empty() => Ok(range),
        _ => Err(format!("expected seeds as N..M with N < M, got `{text}`")),
    }
}

fn main() -> ExitCode {
    let Arguments { command, seed, seeds, verbose, tables, leases, suspended, trees, updates, sabotage } =
        Arguments::parse();
    if let Some(Command::Rates(arguments)) = command {
        return match arguments.run(|line| println!("{line}")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(what) => {
                eprintln!("error: {what}");
                ExitCode::FAILURE
            }
        };
    }
    if let Some(sabotage) = sabotage.filter(|sabotage| sabotage.needs_leases() && !suspended) {
        eprintln!("error: --sabotage {} shows where leases decide\n\nhint: add --suspended", name(sabotage));
        return ExitCode::from(2);
    }
    if let Some(sabotage) = sabotage.filter(|sabotage| sabotage.needs_trees() && !trees) {
        eprintln!(
            "error: --sabotage {} shows where workers feed each other\n\nhint: add --trees",
            name(sabotage)
        );
        return ExitCode::from(2);
    }
    let seeds = seeds.unwrap_or_else(|| seed..seed.saturating_add(1));
    let held = match (tables, leases) {
        (true, _) => run_tables(seeds.clone(), verbose),
        (_, true) => run_leases(seeds.clone(), verbose),
        _ => {
            let scenario = match (suspended, trees) {
                (true, _) => Scenario::suspended,
                (_, true) => Scenario::with_trees,
                _ if updates => Scenario::with_updates,
                _ => Scenario::from_seed,
            };
            run_jobs(seeds.clone(), scenario, verbose, sabotage)
        }
    };
    match held {
        Ok(tally) => match seeds.end - seeds.start {
            1 => println!("1 seed holds: {tally}"),
            count => println!("{count} seeds hold: {tally}"),
        },
        Err((seed, failure)) => {
            let what = if tables {
                "--tables "
            } else if leases {
                "--leases "
            } else if suspended {
                "--suspended "
            } else if trees {
                "--trees "
            } else if updates {
                "--updates "
            } else {
                ""
            };
            let broken = sabotage.map(|it| format!("--sabotage {} ", name(it))).unwrap_or_default();
            let replay = format!("penstock-sim {what}{broken}--seed {seed} -v");
            eprintln!("seed {seed}: {failure}\nhint: replay it with `{replay}`");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// As the command line spells it.
fn name(sabotage: Sabotage) -> String {
    sabotage.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// What happened in all jobs, or the first seed that fails, and how.
fn run_jobs(
    seeds: Range<u64>,
    of_seed: fn(u64) -> Scenario,
    verbose: bool,
    sabotage: Option<Sabotage>,
) -> Result<String, (u64, String)> {
    let mut tally = Tally::default();
    let mut print = |at: u64, observation: &Observation<'_>| println!("{at:>8} {observation}");
    for seed in seeds {
        let scenario = Scenario { sabotage, ..of_seed(seed) };
        let checked = if verbose {
            println!("{scenario:#?}");
            scenario.check_logged(Some(&mut print))
        } else {
            scenario.check()
        };
        tally.merge(&checked.map_err(|failure| (seed, failure.to_string()))?.tally);
    }
    Ok(tally.to_string())
}

/// Likewise, for tables.
fn run_tables(seeds: Range<u64>, verbose: bool) -> Result<String, (u64, String)> {
    let mut tally = items::Tally::default();
    for seed in seeds {
        let scenario = items::Scenario::from_seed(seed);
        if verbose {
            println!("{scenario:#?}");
        }
        tally.merge(&scenario.check().map_err(|failure| (seed, failure))?);
        let leaving = scenario.leaving();
        let leaving = leaving.check().map_err(|failure| (seed, format!("as workers leave: {failure}")));
        tally.merge(&leaving?);
    }
    Ok(tally.to_string())
}

/// Likewise, for leases.
fn run_leases(seeds: Range<u64>, verbose: bool) -> Result<String, (u64, String)> {
    let mut tally = leases::Tally::default();
    for seed in seeds {
        let scenario = leases::Scenario::from_seed(seed);
        if verbose {
            println!("{scenario:#?}");
        }
        tally.merge(&scenario.check().map_err(|failure| (seed, failure))?);
    }
    Ok(tally.to_string())
}
