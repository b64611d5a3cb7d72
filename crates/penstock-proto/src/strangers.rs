//! Which of the connections that have not proved who they are has to close when there is no room for one more: one host, or one
//! network, must not take the places of the others.
//!
//! A host that has all the places that one may have loses its own oldest. Where all places are taken the network with the most
//! loses its oldest; where each has few, the connection that has said nothing for longest goes, or the oldest of all: a host with
//! many addresses must not push out the one host with a handful of workers.
//!
//! Cost of a newcomer: a look at each stranger.

use std::collections::HashMap;
use std::net::IpAddr;

/// How many there may be.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// From one host.
    pub a_host: usize,
    /// From all hosts together.
    pub all: usize,
    /// From one network, that count as few: as many as workers that start at once have.
    pub few: usize,
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub struct Stranger<K> {
    /// The key by which the caller knows it; later connections have greater keys.
    pub key: K,
    /// Where it comes from.
    pub host: IpAddr,
    /// Whether it has said nothing for longer than a worker that comes.
    pub silent: bool,
}

impl Places {
    /// Which one has to go so that one more of `host` fits; `None` if there is room.
    pub fn who_goes<K: Copy + Ord>(
        &self,
        strangers: impl Iterator<Item = Stranger<K>> + Clone,
        host: IpAddr,
    ) -> Option<K> {
        let own = || strangers.clone().filter(|stranger| stranger.host == host);
        if own().count() >= self.a_host {
            return oldest(own());
        }
        if strangers.clone().count() < self.all {
            return None;
        }
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for stranger in strangers.clone() {
            *counts.entry(network(stranger.host)).or_default() += 1;
        }
        let (crowded, most) = counts.into_iter().max_by_key(|&(_, count)| count)?;
        if most > self.few {
            return oldest(strangers.filter(|stranger| network(stranger.host) == crowded));
        }
        oldest(strangers.clone().filter(|stranger| stranger.silent)).or_else(|| oldest(strangers))
    }
}

fn oldest<K: Ord>(strangers: impl Iterator<Item = Stranger<K>>) -> Option<K> {
    strangers.map(|stranger| stranger.key).min()
}

/// The part of an address that its owner was given: of IPv6 the first half, within which it has as many as it likes.
fn network(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(_) => host,
        IpAddr::V6(host) => IpAddr::V6((host.to_bits() & (u128::MAX << 64)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places { a_host: 4, all: 6, few: 2 };

    fn host(text: &str) -> IpAddr {
        text.parse().expect("it is an address")
    }

    /// Strangers by their age, with those that are silent.
    fn who_goes(hosts: &[&str], silent: &[usize], newcomer: &str) -> Option<usize> {
        let strangers = hosts.iter().enumerate();
        let strangers =
            strangers.map(|(key, text)| Stranger { key, host: host(text), silent: silent.contains(&key) });
        PLACES.who_goes(strangers, host(newcomer))
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one() {
        let of = |text| network(host(text));
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn nobody_goes_while_there_is_room() {
        assert_eq!(who_goes(&[], &[], "10.0.0.1"), None);
        assert_eq!(who_goes(&["10.0.0.1"; 3], &[0, 1, 2], "10.0.0.1"), None);
        assert_eq!(who_goes(&["10.0.0.1"; 5], &[], "10.0.0.2"), None);
    }

    #[test]
    fn a_host_with_all_that_one_may_have_loses_its_own_oldest() {
        let hosts = ["10.0.0.9", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"];
        assert_eq!(who_goes(&hosts, &[0], "10.0.0.1"), Some(1));
    }

    #[test]
    fn the_network_with_the_most_loses_its_oldest_whoever_comes() {
        let many = ["10.0.0.9", "2001:db8::1", "2001:db8::2", "2001:db8::3", "10.0.0.8", "10.0.0.7"];
        assert_eq!(who_goes(&many, &[0], "10.0.0.6"), Some(1));
    }

    #[test]
    fn where_each_has_few_the_silent_go_before_those_that_talk() {
        let few = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
        assert_eq!(who_goes(&few, &[4, 3], "10.0.0.7"), Some(3));
        assert_eq!(who_goes(&few, &[], "10.0.0.7"), Some(0));
    }
}
