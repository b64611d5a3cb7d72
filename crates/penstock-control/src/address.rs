//! `HOST:PORT`, and whether it stays on this host.

use crate::error::Error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Where a manager listens: a name or an IP address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Name or IP address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Address {
    /// Reads `HOST:PORT`; an IPv6 address stands in brackets.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = || Error::Address { got: text.to_owned() };
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().map_err(|_| bad())?;
        let bare = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) if inner.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) => inner,
            Some(_) => return Err(bad()),
            None => host,
        };
        let name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let known = bare.parse::<IpAddr>().is_ok() || (!bare.is_empty() && bare.bytes().all(name));
        // `::1:7700` could be read in two ways.
        if !known || (bare.contains(':') && bare.len() == host.len()) {
            return Err(bad());
        }
        Ok(Self { host: bare.to_owned(), port })
    }

    /// The addresses behind the name; never empty.
    pub(crate) async fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let found: Vec<_> = tokio::net::lookup_host((&self.host[..], self.port)).await?.collect();
        if found.is_empty() {
            return Err(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(found)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Whether what is sent there stays on this host.
pub(crate) fn stays_here(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_it_is_read() {
        for text in ["127.0.0.1:7701", "[::1]:0", "manager.example:65535", "node-1:80"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "7701",
            ":7701",
            "host:",
            "host:65536",
            "::1:80",
            "[host]:80",
            "ho st:80",
            "http://a:80",
            "a,b:1",
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_loopback_stays_on_this_host() {
        let here = |text: &str| stays_here(&[text.parse().unwrap()]);
        assert!(
            here("127.0.0.1:1") && here("127.9.9.9:1") && here("[::1]:1") && here("[::ffff:127.0.0.1]:1")
        );
        assert!(!here("0.0.0.0:1") && !here("[::]:1") && !here("10.0.0.1:1"));
    }
}
