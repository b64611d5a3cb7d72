//! The one table of options: name, environment, default, unit, bounds, meaning. The command line, Python and the
//! documentation are generated from it, and everything that is set is read through it.

use penstock_proto::chunk::{DEFAULT_CHUNK_BYTES, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, is_chunk_size};
use penstock_proto::consistency::Consistency;
use penstock_proto::message::MAX_SHARDS;
use penstock_proto::overlay::{Rack, RackError, Rate, RateError, Shape, ShapeError};
use std::path::PathBuf;
use std::time::Duration;

/// Where Slurm says which switches a host is below.
const SLURM_TOPOLOGY: [&str; 2] = ["SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"];

/// What an option is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Its name, in Python and (with dashes) on the command line.
    pub name: &'static str,
    /// Its environment variable.
    pub env: &'static str,
    /// Its default, as it would be written.
    pub default: &'static str,
    /// Its unit; empty for a word.
    pub unit: &'static str,
    /// Least value, as it would be written; empty where there is no order.
    pub minimum: &'static str,
    /// Largest value; empty where there is none.
    pub maximum: &'static str,
    /// What it does, in a sentence.
    pub doc: &'static str,
}

/// All options.
pub const TABLE: [Row; 17] = [
    Row {
        name: "consistency",
        env: "PENSTOCK_CONSISTENCY",
        default: "bsp",
        unit: "",
        minimum: "",
        maximum: "",
        doc: "Consistency of tensors that do not name one: bsp, ssp:SLACK or asp.",
    },
    Row {
        name: "chunk_bytes",
        env: "PENSTOCK_CHUNK_BYTES",
        default: "32KiB",
        unit: "bytes",
        minimum: "4KiB",
        maximum: "4MiB",
        doc: "Bytes of a chunk, a power of two.",
    },
    Row {
        name: "shards",
        env: "PENSTOCK_SHARDS",
        default: "0",
        unit: "threads",
        minimum: "0",
        maximum: "64",
        doc: "Shards (threads, each bound to a core) of a server; 0: the host's cores divided by its servers.",
    },
    Row {
        name: "deadline",
        env: "PENSTOCK_DEADLINE",
        default: "60",
        unit: "seconds",
        minimum: "0.001",
        maximum: "1e6",
        doc: "Longest wait of any call that has no timeout of its own.",
    },
    Row {
        name: "lease",
        env: "PENSTOCK_LEASE",
        default: "10",
        unit: "seconds",
        minimum: "0.1",
        maximum: "1e6",
        doc: "Time without a sign of life after which a worker counts as lost.",
    },
    Row {
        name: "memory",
        env: "PENSTOCK_MEMORY",
        default: "0",
        unit: "bytes",
        minimum: "0",
        maximum: "",
        doc: "Shared memory that a server may take; 0: four fifths of what is available when it starts.",
    },
    Row {
        name: "on_worker_loss",
        env: "PENSTOCK_ON_WORKER_LOSS",
        default: "stop",
        unit: "",
        minimum: "",
        maximum: "",
        doc: "What a job does when a worker dies or hangs: stop (all get an error that names it) or continue (without it).",
    },
    Row {
        name: "pin",
        env: "PENSTOCK_PIN",
        default: "on",
        unit: "",
        minimum: "",
        maximum: "",
        doc: "Whether shards are bound to cores: on or off.",
    },
    Row {
        name: "security",
        env: "PENSTOCK_SECURITY",
        default: "auto",
        unit: "",
        minimum: "",
        maximum: "",
        doc: "auto: TLS 1.3 on every connection except loopback; tls: there too; insecure: no encryption at all, so anyone on the network path can read and change what is sent.",
    },
    Row {
        name: "transport",
        env: "PENSTOCK_TRANSPORT",
        default: "auto",
        unit: "",
        minimum: "",
        maximum: "",
        doc: "auto: shared memory where worker and server are on one host, TCP elsewhere; tcp: TCP everywhere.",
    },
    Row {
        name: "tree",
        env: "PENSTOCK_TREE",
        default: "star",
        unit: "",
        minimum: "",
        maximum: "",
        doc: "How a server sends what it broadcasts to workers on other hosts: star (itself, to each), or along trees of workers that pass it on: auto, chain, striped[:STRIPES] or tree:degree=T,depth=H,leaf_penalty=A. All workers say the same.",
    },
    Row {
        name: "rack",
        env: "PENSTOCK_RACK",
        default: "",
        unit: "",
        minimum: "",
        maximum: "",
        doc: "Where this host stands, for such trees: a rack, or zone/rack; empty: as Slurm says (SLURM_TOPOLOGY_ADDR), if it does.",
    },
    Row {
        name: "rate",
        env: "PENSTOCK_RATE",
        default: "",
        unit: "",
        minimum: "",
        maximum: "",
        doc: "What this host's uplink carries, for such trees, until it is measured: a number and kbit, mbit, gbit or tbit, as in 10gbit; empty: as much as most.",
    },
    Row {
        name: "lend",
        env: "PENSTOCK_LEND",
        default: "on",
        unit: "",
        minimum: "",
        maximum: "",
        doc: "On: workers of one host that trees feed read one copy of what is broadcast, in memory that the first of them lends. Keep memory free for the others' own copies: a worker that needs its own and cannot get it fails. off: each keeps its own.",
    },
    Row {
        name: "ca",
        env: "PENSTOCK_CA",
        default: "",
        unit: "path",
        minimum: "",
        maximum: "",
        doc: "PEM file of the certificate authorities that a server's certificate must come from; empty: any certificate, since the job's secret proves who the server is. Under a manager: that the manager's must come from.",
    },
    Row {
        name: "certificate",
        env: "PENSTOCK_CERTIFICATE",
        default: "",
        unit: "path",
        minimum: "",
        maximum: "",
        doc: "PEM file of a server's certificate, followed by its chain; empty: one is made at start.",
    },
    Row {
        name: "key",
        env: "PENSTOCK_KEY",
        default: "",
        unit: "path",
        minimum: "",
        maximum: "",
        doc: "PEM file of the certificate's private key.",
    },
];

/// What a job does when a worker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnWorkerLoss {
    /// All workers get an error that names it.
    Stop,
    /// The others go on without it.
    Continue,
}

/// What is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// Every connection but loopback and Unix sockets.
    Auto,
    /// Loopback too.
    Tls,
    /// Nothing.
    Insecure,
}

/// How bytes get from a worker to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By shared memory on one host, by TCP between hosts.
    Auto,
    /// By TCP always.
    Tcp,
}

/// All options, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Consistency of tensors that name none.
    pub consistency: Consistency,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Shards of a server; 0 for as many as the cores give.
    pub shards: u32,
    /// Longest wait.
    pub deadline: Duration,
    /// Time without a sign of life.
    pub lease: Duration,
    /// Shared memory that a server may take; 0 for four fifths of what is available.
    pub memory: u64,
    /// What to do when a worker is lost.
    pub on_worker_loss: OnWorkerLoss,
    /// Whether shards are bound to cores.
    pub pin: bool,
    /// What is encrypted.
    pub security: Security,
    /// How bytes travel.
    pub transport: Transport,
    /// How what is broadcast comes to workers on other hosts.
    pub tree: Shape,
    /// Where this host stands.
    pub rack: Rack,
    /// What its uplink carries.
    pub rate: Rate,
    /// Whether workers of one host share a copy of what trees bring.
    pub lend: bool,
    /// Certificate authorities that a worker trusts.
    pub ca: Option<PathBuf>,
    /// A server's certificate.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// An option that does not exist, or that has a value it cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// There is no such option.
    #[error("there is no option `{got}`")]
    Unknown {
        /// What came.
        got: String,
    },
    /// The value is not one.
    #[error("expected {expected} for the option `{name}`, got `{got}`")]
    BadValue {
        /// The option.
        name: &'static str,
        /// What it may be.
        expected: String,
        /// What came.
        got: String,
    },
}

impl OptionError {
    /// What to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { .. } => {
                let names: Vec<_> = TABLE.iter().map(|row| row.name).collect();
                Some(format!("the options are {}", names.join(", ")))
            }
            Self::BadValue { name, .. } => {
                let row = row(name)?;
                Some(format!("{} Also set by {}.", row.doc, row.env))
            }
        }
    }
}

fn row(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.name == name)
}

impl Options {
    /// Reads every option: from `explicit` where it is named there, else from its environment variable, else its default.
    pub fn load<'a>(explicit: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, OptionError> {
        Self::read(explicit, |env| std::env::var(env).ok())
    }

    fn read<'a>(
        explicit: impl IntoIterator<Item = (&'a str, &'a str)>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, OptionError> {
        let mut values: Vec<String> =
            TABLE.iter().map(|row| environment(row.env).unwrap_or_else(|| row.default.to_owned())).collect();
        for (name, value) in explicit {
            let at = TABLE.iter().position(|row| row.name == name);
            let at = at.ok_or_else(|| OptionError::Unknown { got: name.to_owned() })?;
            values[at] = value.to_owned();
        }
        let by_slurm = || {
            let (address, pattern) = SLURM_TOPOLOGY.map(|name| environment(name).unwrap_or_default()).into();
            Rack::of_slurm(&address, &pattern).unwrap_or_default()
        };
        let value = |name: &'static str| {
            let at = TABLE.iter().position(|row| row.name == name).expect("the name is in the table");
            Value { name, text: &values[at] }
        };
        Ok(Self {
            consistency: value("consistency").consistency()?,
            chunk_bytes: value("chunk_bytes").chunk_bytes()?,
            shards: value("shards").shards()?,
            deadline: value("deadline").seconds(0.001)?,
            lease: value("lease").seconds(0.1)?,
            memory: value("memory").bytes()?,
            on_worker_loss: value("on_worker_loss")
                .word(&[("stop", OnWorkerLoss::Stop), ("continue", OnWorkerLoss::Continue)])?,
            pin: value("pin").word(&[("on", true), ("off", false)])?,
            security: value("security").word(&[
                ("auto", Security::Auto),
                ("tls", Security::Tls),
                ("insecure", Security::Insecure),
            ])?,
            transport: value("transport").word(&[("auto", Transport::Auto), ("tcp", Transport::Tcp)])?,
            tree: value("tree").shape()?,
            rack: Some(value("rack").rack()?)
                .filter(|rack| *rack != Rack::default())
                .unwrap_or_else(by_slurm),
            rate: value("rate").rate()?,
            lend: value("lend").word(&[("on", true), ("off", false)])?,
            ca: value("ca").file()?,
            certificate: value("certificate").file()?,
            key: value("key").file()?,
        })
    }
}

struct Value<'a> {
    name: &'static str,
    text: &'a str,
}

impl Value<'_> {
    fn refuse<T>(&self, expected: impl Into<String>) -> Result<T, OptionError> {
        Err(OptionError::BadValue { name: self.name, expected: expected.into(), got: self.text.to_owned() })
    }

    fn consistency(&self) -> Result<Consistency, OptionError> {
        self.text.parse().or_else(|_| self.refuse("`bsp`, `ssp:SLACK` (slack 0 or more) or `asp`"))
    }

    fn bytes(&self) -> Result<u64, OptionError> {
        match parse_bytes(self.text) {
            Some(bytes) => Ok(bytes),
            None => self.refuse("a number of bytes like 65536, 64KiB, 1.5MiB, 2GiB or 97MB"),
        }
    }

    fn chunk_bytes(&self) -> Result<u32, OptionError> {
        match u32::try_from(self.bytes()?) {
            Ok(bytes) if is_chunk_size(bytes) => Ok(bytes),
            _ => self.refuse(format!("a power of two from {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES} bytes")),
        }
    }

    fn shards(&self) -> Result<u32, OptionError> {
        match self.text.parse() {
            Ok(shards) if shards <= MAX_SHARDS => Ok(shards),
            _ => self.refuse(format!("a number from 0 to {MAX_SHARDS}")),
        }
    }

    fn seconds(&self, least: f64) -> Result<Duration, OptionError> {
        match self.text.parse::<f64>() {
            Ok(seconds) if (least..=1e6).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            _ => self.refuse(format!("seconds from {least} to 1e6")),
        }
    }

    fn shape(&self) -> Result<Shape, OptionError> {
        self.text.parse().or_else(|ShapeError { what, .. }| self.refuse(what.expected()))
    }

    fn rack(&self) -> Result<Rack, OptionError> {
        self.text.parse().or_else(|_| self.refuse(RackError::expected()))
    }

    fn rate(&self) -> Result<Rate, OptionError> {
        self.text.parse().or_else(|_| self.refuse(RateError::EXPECTED))
    }

    fn file(&self) -> Result<Option<PathBuf>, OptionError> {
        let path = PathBuf::from(self.text);
        match self.text {
            "" => Ok(None),
            _ if path.is_file() => Ok(Some(path)),
            _ => self.refuse("the path of a file that exists"),
        }
    }

    fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, OptionError> {
        match words.iter().find(|(word, _)| *word == self.text) {
            Some((_, value)) => Ok(*value),
            None => self
                .refuse(words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(" or ")),
        }
    }
}

/// Bytes of `64KiB`, `1.5MiB`, `2GiB` (powers of 1024, as is `2G`), `97MB` (powers of 1000), `65536` and the like.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..].to_ascii_lowercase()[..] {
        "" | "b" => 1u64,
        "k" | "kib" => 1 << 10,
        "kb" => 1_000,
        "m" | "mib" => 1 << 20,
        "mb" => 1_000_000,
        "g" | "gib" => 1 << 30,
        "gb" => 1_000_000_000,
        "t" | "tib" => 1 << 40,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let bytes = digits.parse::<f64>().ok()? * unit as f64;
    (bytes.is_finite() && bytes >= 0.0 && bytes < 2f64.powi(63) && bytes.fract() == 0.0)
        .then_some(bytes as u64)
}

/// The chunk size that the table names is the protocol's.
const _: () = assert!(DEFAULT_CHUNK_BYTES == 32 * 1024);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(explicit: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Options, OptionError> {
        let find = |env: &str| {
            environment.iter().find(|(name, _)| *name == env).map(|(_, value)| (*value).to_owned())
        };
        Options::read(explicit.iter().copied(), find)
    }

    #[test]
    fn what_is_said_goes_before_the_environment_and_that_before_the_default() {
        assert_eq!(read(&[], &[]).unwrap().chunk_bytes, DEFAULT_CHUNK_BYTES);
        let environment = [("PENSTOCK_CHUNK_BYTES", "8KiB")];
        assert_eq!(read(&[], &environment).unwrap().chunk_bytes, 8192);
        assert_eq!(read(&[("chunk_bytes", "4096")], &environment).unwrap().chunk_bytes, 4096);
    }

    #[test]
    fn every_option_refuses_nonsense_and_names_itself() {
        for row in TABLE {
            // A rack may have any name.
            let nonsense = if row.name == "rack" { "no/such/place" } else { "nonsense" };
            match read(&[(row.name, nonsense)], &[]) {
                Err(OptionError::BadValue { name, .. }) => assert_eq!(name, row.name),
                other => panic!("{}: {other:?}", row.name),
            }
        }
        for (name, value) in [
            ("chunk_bytes", "5000"),
            ("shards", "65"),
            ("deadline", "0"),
            ("deadline", "-1"),
            ("lease", "NaN"),
            ("memory", "-1"),
            ("consistency", "ssp:-1"),
            ("shards", "-1"),
            ("chunk_bytes", "8MiB"),
            ("tree", ""),
            ("tree", "striped:0"),
            ("tree", "tree:degree=0"),
            ("tree", "tree:degree=2,leaf_penalty=-1"),
            ("tree", "tree:degree=2,leaf_penalty=NaN"),
            ("rack", "zone/"),
            ("rate", "1gb"),
            ("rate", "0gbit"),
        ] {
            assert!(read(&[(name, value)], &[]).is_err(), "{name}={value}");
        }
        assert!(matches!(read(&[("chunks", "1")], &[]), Err(OptionError::Unknown { .. })));
    }

    #[test]
    fn a_shape_that_cannot_be_is_refused_with_what_is_wrong_with_it() {
        assert_eq!(read(&[], &[]).unwrap().tree, Shape::Star);
        let environment = [("PENSTOCK_TREE", "striped:4"), ("PENSTOCK_RACK", "zone2/r7")];
        let options = read(&[], &environment).unwrap();
        assert_eq!((options.tree, &options.rack.zone[..]), (Shape::Striped { stripes: Some(4) }, "zone2"));
        let slurm = |name: &str| match name {
            "SLURM_TOPOLOGY_ADDR" => Some("s0.s4.tux1".to_owned()),
            "SLURM_TOPOLOGY_ADDR_PATTERN" => Some("switch.switch.node".to_owned()),
            _ => None,
        };
        for (given, rack) in [(&[][..], "s0/s4"), (&[("rack", "mine")], "mine")] {
            assert_eq!(Options::read(given.iter().copied(), slurm).unwrap().rack.to_string(), rack);
        }
        let told = read(&[("tree", "tree:degree=2,depth=0")], &environment).unwrap_err().to_string();
        let expected = "expected a depth of at least 1, as in tree:degree=2,depth=5, or none: the least for the option `tree`, got `tree:degree=2,depth=0`";
        assert_eq!(told, expected);
    }

    #[test]
    fn bytes_are_read_with_their_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64KiB", 65536),
            ("1.5MiB", 3 << 19),
            ("2g", 2 << 30),
            ("97MB", 97_000_000),
            ("0", 0),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "1.0000001", "12 KiB", "1e400", "99999999999TiB", "5XiB"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
