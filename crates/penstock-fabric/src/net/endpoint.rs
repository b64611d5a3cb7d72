//! Endpoints: how a server is named, in one string.
//!
//! | string | means |
//! |---|---|
//! | `/run/s0` or `unix:/run/s0` | a socket on this host: shared memory |
//! | `tcp://10.0.0.1:7700` | a server anywhere: TCP |
//! | `tcp://10.0.0.1:7700?also=10.1.0.1:7700` | a server with two network interfaces: its shards take turns |
//! | `tcp://10.0.0.1:7700?host=1f..&unix=/run/s0` | both: a worker on the host with this id takes the socket |

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoint {
    /// Host and port.
    pub tcp: Option<Address>,
    /// The same on its other network interfaces.
    pub also: Vec<Address>,
    /// A socket's path.
    pub unix: Option<PathBuf>,
    /// Id of the host on which the path means something; `None`: this one.
    pub host: Option<String>,
}

/// A host's name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Without the brackets of an IPv6 address.
    pub host: String,
    /// 0: whichever is free.
    pub port: u16,
}

/// A string that names no server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a socket's path or tcp://HOST:PORT for a server, got {got:?}")]
pub struct NoEndpoint {
    /// What came.
    pub got: String,
}

impl NoEndpoint {
    /// What was meant, where it is an address to which only `tcp://` is missing.
    pub fn hint(&self) -> Option<String> {
        let Self { got } = self;
        let bare = is_bare_address(got);
        bare.then(|| format!("give tcp://{got}; a socket of that name in the current directory is ./{got}"))
    }
}

/// Whether `tcp://` before it makes an endpoint of it. As a path it would be a socket in the directory that happens to be the
/// current one, which no user means, and which is not found.
fn is_bare_address(text: &str) -> bool {
    let address = text.split_once('?').map_or(text, |(address, _)| address);
    address.parse::<Address>().is_ok() && !text.starts_with("unix:")
}

impl FromStr for Address {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        let refuse = || NoEndpoint { got: text.to_owned() };
        let (host, port) = text.rsplit_once(':').ok_or_else(refuse)?;
        let port = port.parse().map_err(|_| refuse())?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(bare) if bare.contains(':') => bare,
            None if !host.is_empty() && !host.contains([':', '/', '[', ']', '?', '&']) => host,
            _ => return Err(refuse()),
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        let refuse = || NoEndpoint { got: text.to_owned() };
        let path = |path: &str| (!path.is_empty() && !path.contains('\0')).then(|| PathBuf::from(path));
        let Some(rest) = text.strip_prefix("tcp://") else {
            let unix = path(text.strip_prefix("unix:").unwrap_or(text)).ok_or_else(refuse)?;
            if unix.to_str().is_none_or(|path| path.contains("://")) || is_bare_address(text) {
                return Err(refuse());
            }
            return Ok(Self { unix: Some(unix), ..Self::default() });
        };
        let (address, beside) = rest.split_once('?').unwrap_or((rest, ""));
        let mut endpoint = Self { tcp: Some(address.parse().map_err(|_| refuse())?), ..Self::default() };
        for pair in beside.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("also", address)) => endpoint.also.push(address.parse().map_err(|_| refuse())?),
                Some(("host", host)) if !host.is_empty() => endpoint.host = Some(host.to_owned()),
                Some(("unix", socket)) => endpoint.unix = Some(path(socket).ok_or_else(refuse)?),
                _ => return Err(refuse()),
            }
        }
        Ok(endpoint)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unix = self.unix.as_deref().map(Path::display);
        let Some(tcp) = &self.tcp else {
            return unix.map_or(Ok(()), |path| write!(f, "{path}"));
        };
        write!(f, "tcp://{tcp}")?;
        let mut sign = '?';
        for address in &self.also {
            write!(f, "{sign}also={address}")?;
            sign = '&';
        }
        if let Some(host) = &self.host {
            write!(f, "{sign}host={host}")?;
            sign = '&';
        }
        unix.map_or(Ok(()), |path| write!(f, "{sign}unix={path}"))
    }
}

impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Self {
        Self { unix: Some(path), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_reads_back_as_it_was_written() {
        for text in [
            "/run/s0",
            "tcp://10.0.0.1:7700",
            "tcp://node-3.cluster:0",
            "tcp://[::1]:80?host=ab",
            "tcp://10.0.0.1:7700?also=10.1.0.1:7700&also=[::2]:1&host=1f",
            "tcp://10.0.0.1:7700?host=1f&unix=/run/s0",
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), text);
        }
        assert_eq!("unix:/run/s0".parse::<Endpoint>().unwrap(), PathBuf::from("/run/s0").into());
    }

    #[test]
    fn what_names_no_server_is_refused_with_the_text() {
        for text in [
            "",
            "unix:",
            "tcp://",
            "tcp://host",
            "tcp://host:99999",
            "tcp://:80",
            "tcp://::1:80",
            "http://host:80",
            "tcp://host:80?port=9",
            "tcp://host:80?also=x",
            "tcp://host:80?host=",
            "tcp://[host]:80",
            "tcp://a/b:80",
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(NoEndpoint { got: text.to_owned() }), "{text}");
        }
    }

    // It was looked for as a socket in the current directory, and not found.
    #[test]
    fn an_address_without_tcp_is_refused_with_what_was_meant() {
        for text in ["localhost:7700", "10.0.0.1:7700", "[::1]:7700", "a:7700?also=b:7700"] {
            let refused = text.parse::<Endpoint>().unwrap_err();
            assert!(refused.hint().unwrap().starts_with(&format!("give tcp://{text};")), "{text}");
        }
        for path in ["./localhost:7700", "/run/s:7700", "unix:s:7700", "s0", "s:x"] {
            let endpoint: Endpoint = path.parse().unwrap();
            assert!(endpoint.unix.is_some(), "{path}");
        }
        assert_eq!("http://host:80".parse::<Endpoint>().unwrap_err().hint(), None);
    }
}
