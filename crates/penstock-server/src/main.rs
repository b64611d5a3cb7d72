//! A server for hosts without Python. `penstock run` starts its own; this is for launchers that start servers themselves.
//!
//! The Python package has the same command (`python/penstock/cli/standalone.py`); `tests/cli/test_standalone.py` runs over both.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use penstock::environment::strays;
use penstock::options::{Options, TABLE};
use penstock::server::{Server, ServerConfig};
use penstock_fabric::net::endpoint::Address;
use penstock_fabric::signals::{self, Ending};
use penstock_proto::message::{MAX_SERVERS, MAX_WORKERS, Secret};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Between two looks at whether a signal asks for the end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The command line was wrong: nothing has been started.
const USAGE: u8 = 2;

/// An option's name as the command line spells it; made once, for the life of the process.
fn dashed(name: &str) -> &'static str {
    name.replace('_', "-").leak()
}

fn command() -> Command {
    let number = |name: &'static str, help: &'static str, default: &'static str| {
        Arg::new(name).long(name).help(help).default_value(default).allow_hyphen_values(true)
    };
    let command = Command::new("penstock-server")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Serves the chunks of one job. The job's secret comes from PENSTOCK_SECRET (64 hexadecimal digits).")
        .arg(Arg::new("socket").long("socket").value_parser(value_parser!(PathBuf)).help("Path of a Unix socket, for workers on this host"))
        .arg(Arg::new("listen").long("listen").action(ArgAction::Append).help("HOST:PORT to listen on for workers on other hosts; several for several interfaces"))
        .arg(Arg::new("job").long("job").default_value("job").help("The job's name"))
        .arg(number("workers", "Workers of the job", "1"))
        .arg(number("servers", "Servers of the job", "1"))
        .arg(number("index", "This server's number among them, from 0", "0"));
    TABLE.iter().fold(command, |command, row| {
        let help = format!("{} [default: {}] [env: {}]", row.doc, row.default, row.env);
        command.arg(Arg::new(row.name).long(dashed(row.name)).value_name("VALUE").help(help))
    })
}

struct Refused {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl Refused {
    /// The command line is wrong.
    fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: Some(hint.into()), code: USAGE }
    }
}

/// A number of processes, from 1 to `most`.
fn count(text: &str, flag: &str, most: u32) -> Result<u32, Refused> {
    let hint = format!("give a number from 1 to {most}");
    match text.parse::<i128>() {
        Err(_) => Err(Refused::usage(format!("{flag} '{text}' is not a whole number"), hint)),
        Ok(number) if number < 1 => {
            Err(Refused::usage(format!("{flag} is {number}, but has to be at least 1"), hint))
        }
        Ok(number) => u32::try_from(number).ok().filter(|&number| number <= most).ok_or_else(|| {
            Refused::usage(format!("{flag} is {number}, but at most {most} are allowed"), hint)
        }),
    }
}

fn config(matches: &ArgMatches) -> Result<ServerConfig, Refused> {
    let text = |name| matches.get_one::<String>(name).expect("it has a default").as_str();
    let path = matches.get_one::<PathBuf>("socket").cloned();
    let listen: Vec<&String> = matches.get_many("listen").unwrap_or_default().collect();
    if path.is_none() && listen.is_empty() {
        return Err(Refused::usage("expected --socket or --listen", "`penstock-server --help` shows both"));
    }
    let listen = listen.into_iter().map(|text| {
        text.parse::<Address>().map_err(|_| {
            let hint = "such as 10.0.0.1:7700; port 0 lets the system choose";
            Refused::usage(format!("expected --listen HOST:PORT, got '{text}'"), hint)
        })
    });
    let listen = listen.collect::<Result<_, _>>()?;
    let secret = secret()?;
    let workers = count(text("workers"), "--workers", MAX_WORKERS)?;
    let servers = count(text("servers"), "--servers", MAX_SERVERS)?;
    let index = index(text("index"), servers)?;
    let given =
        TABLE.iter().filter_map(|row| Some((row.name, matches.get_one::<String>(row.name)?.as_str())));
    let options = Options::load(given).map_err(|error| Refused {
        message: error.to_string(),
        hint: error.hint(),
        code: USAGE,
    })?;
    Ok(ServerConfig { path, listen, job: text("job").to_owned(), secret, index, servers, workers, options })
}

fn secret() -> Result<Secret, Refused> {
    let hint = "`export PENSTOCK_SECRET=$(openssl rand -hex 32)`, the same for servers and workers";
    let hex = std::env::var("PENSTOCK_SECRET").unwrap_or_default();
    if hex.is_empty() {
        return Err(Refused::usage("PENSTOCK_SECRET is not set", hint));
    }
    Secret::from_hex(&hex).ok_or_else(|| {
        let got = hex.chars().count();
        Refused::usage(
            format!("expected 64 hexadecimal digits in PENSTOCK_SECRET, got {got} characters"),
            hint,
        )
    })
}

/// This server's number among `servers`.
fn index(text: &str, servers: u32) -> Result<u32, Refused> {
    let number = text.parse().ok().filter(|&number| number < servers);
    number.ok_or_else(|| {
        let hint = format!("give a number from 0 to {}", servers - 1);
        Refused::usage(format!("expected --index below {servers}, the number of servers, got '{text}'"), hint)
    })
}

/// Refuses variables that are nearly ours, and reports others with the prefix, which may be another program's.
#[expect(clippy::print_stderr, reason = "a command speaks to its user")]
fn check_names() -> Result<(), Refused> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for stray in strays(names) {
        if let Some(hint) = stray.hint() {
            return Err(Refused::usage(stray.to_string(), hint));
        }
        eprintln!("warning: {stray}");
    }
    Ok(())
}

/// Serves until the job has ended, or a signal asks for the end.
fn run(matches: &ArgMatches) -> Result<ExitCode, Refused> {
    check_names()?;
    let config = config(matches)?;
    penstock::log::warn_on_stderr();
    signals::listen();
    signals::ignore_file_limit();
    let failed = |message: String, hint| Refused { message, hint, code: 1 };
    let mut server = Server::start(config).map_err(|error| failed(error.to_string(), error.hint()))?;
    loop {
        let ended = server.wait(LOOK_EVERY);
        let asked = signals::asked();
        if ended.is_none() && asked.is_none() {
            continue;
        }
        server.stop();
        return match (ended, asked) {
            (Some(Err(failure)), _) => Err(failed(failure.to_string(), None)),
            (None, Some(Ending::Interrupt)) => Ok(ExitCode::from(130)),
            _ => Ok(ExitCode::SUCCESS),
        };
    }
}

/// What the parser refuses, in the words of the command in Python.
fn refused(error: &clap::Error) -> Refused {
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.split([' ', '=']).next().unwrap_or(text)),
        _ => None,
    };
    let name = said(ContextKind::InvalidArg).unwrap_or_default();
    let hint = "`penstock-server --help` lists what it takes".to_owned();
    match error.kind() {
        ErrorKind::UnknownArgument if name.starts_with('-') => {
            let meant = said(ContextKind::SuggestedArg).map(|meant| format!("did you mean {meant}?"));
            Refused::usage(format!("unknown option {name}"), meant.unwrap_or(hint))
        }
        ErrorKind::UnknownArgument => Refused::usage(format!("unexpected argument '{name}'"), hint),
        // The one way in which a text option can be invalid.
        ErrorKind::InvalidValue => Refused::usage(format!("argument {name}: expected one argument"), hint),
        _ => {
            let text = error.to_string();
            let text = text.lines().next().unwrap_or_default();
            Refused::usage(text.strip_prefix("error: ").unwrap_or(text), hint)
        }
    }
}

#[expect(clippy::print_stderr, reason = "a command speaks to its user")]
fn main() -> ExitCode {
    let ended = match command().try_get_matches() {
        Ok(matches) => run(&matches),
        Err(error) if !error.use_stderr() => error.exit(), // --help, --version
        Err(error) => Err(refused(&error)),
    };
    match ended {
        Ok(code) => code,
        Err(Refused { message, hint, code }) => {
            eprintln!("error: {message}");
            if let Some(hint) = hint {
                eprintln!("\nhint: {hint}");
            }
            ExitCode::from(code)
        }
    }
}
