//! A server for hosts without Python. `penstock run` starts its own; this is for launchers that start servers themselves.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use penstock::options::{Options, TABLE};
use penstock::server::{Server, ServerConfig};
use penstock_fabric::net::endpoint::Address;
use penstock_proto::error::Hint;
use penstock_proto::message::Secret;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Between two looks at whether the job has ended, should a wake-up be lost.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// An option's name as the command line spells it; made once, for the life of the process.
fn dashed(name: &str) -> &'static str {
    name.replace('_', "-").leak()
}

fn command() -> Command {
    let number = |name: &'static str, help: &'static str, default: &'static str| {
        Arg::new(name).long(name).help(help).default_value(default).value_parser(value_parser!(u32))
    };
    let command = Command::new("penstock-server")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Homes the chunks of one job. The job's secret is read from PENSTOCK_SECRET (64 hexadecimal digits).")
        .arg(Arg::new("socket").long("socket").required_unless_present("listen").value_parser(value_parser!(PathBuf)).help("Path of a Unix socket, for workers on this host"))
        .arg(Arg::new("listen").long("listen").action(ArgAction::Append).value_parser(|text: &str| text.parse::<Address>()).help("HOST:PORT to listen on for workers on other hosts; several for several interfaces"))
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
}

fn run(matches: &ArgMatches) -> Result<(), Refused> {
    let given =
        TABLE.iter().filter_map(|row| Some((row.name, matches.get_one::<String>(row.name)?.as_str())));
    let options =
        Options::load(given).map_err(|error| Refused { message: error.to_string(), hint: error.hint() })?;
    let secret = std::env::var("PENSTOCK_SECRET").ok().and_then(|hex| Secret::from_hex(&hex));
    let secret = secret.ok_or_else(|| Refused {
        message: "expected the job's secret in PENSTOCK_SECRET: 64 hexadecimal digits".to_owned(),
        hint: Some(
            "make one with `openssl rand -hex 32` and give it to servers and workers alike".to_owned(),
        ),
    })?;
    let number = |name| *matches.get_one::<u32>(name).expect("it has a default");
    let path = matches.get_one::<PathBuf>("socket").cloned();
    let (index, servers, workers) = (number("index"), number("servers"), number("workers"));
    let listen = matches.get_many::<Address>("listen").unwrap_or_default().cloned().collect();
    let job = matches.get_one::<String>("job").expect("it has a default").clone();
    let config = ServerConfig { path, listen, job, secret, index, servers, workers, options };
    let server =
        Server::start(config).map_err(|error| Refused { message: error.to_string(), hint: error.hint() })?;
    loop {
        match server.wait(LOOK_EVERY) {
            None => {}
            Some(Ok(())) => return Ok(()),
            Some(Err(failure)) => return Err(Refused { message: failure.to_string(), hint: failure.hint() }),
        }
    }
}

#[expect(clippy::print_stderr, reason = "a command speaks to its user")]
fn main() -> ExitCode {
    let Err(Refused { message, hint }) = run(&command().get_matches()) else { return ExitCode::SUCCESS };
    eprintln!("error: {message}");
    if let Some(hint) = hint {
        eprintln!("\nhint: {hint}");
    }
    ExitCode::FAILURE
}
