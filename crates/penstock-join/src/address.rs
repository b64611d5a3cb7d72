//! The address by which other hosts reach this one.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _, UdpSocket};

/// Reserved for documentation: nothing is ever sent there, only asked which way it would go.
const SOME_ADDRESS_ELSEWHERE: &str = "192.0.2.1";
/// Any port does.
const PORT: u16 = 9;

/// That of the interface that leads to `rendezvous_address`, else that of the way out of this host; `None` if there is none but loopback.
pub fn reachable(rendezvous_address: &str) -> Option<IpAddr> {
    [rendezvous_address, SOME_ADDRESS_ELSEWHERE]
        .into_iter()
        .filter_map(on_the_way_to)
        .find(|found| !found.is_loopback())
}

fn on_the_way_to(host: &str) -> Option<IpAddr> {
    (host, PORT).to_socket_addrs().ok()?.find_map(|target| {
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let probe = UdpSocket::bind(any).ok()?;
        // Sends nothing: it only chooses the way.
        probe.connect(target).ok()?;
        probe
            .local_addr()
            .ok()
            .map(|found| found.ip())
            .filter(|found| *found != IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_no_address_for_others() {
        assert_eq!(on_the_way_to("127.0.0.1"), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert!(reachable("127.0.0.1").is_none_or(|found| !found.is_loopback()));
    }
}
