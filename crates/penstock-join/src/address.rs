//! The address by which other hosts reach this one.
#![expect(clippy::host_endian_bytes, reason = "the kernel's messages have the host's order")]

use crate::patience::{Interrupted, Patience};
use crate::resolve::{Lookup, Unresolved, system};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// Reserved for documentation: nothing is ever sent there; the kernel is only asked which way it would go.
const SOME_ADDRESS_ELSEWHERE: &str = "192.0.2.1";
/// Any port does.
const PORT: u16 = 9;
/// Longest look-up of a name: it was found before, where processes met, or it is of no use here.
const LOOKUP_TIME: Duration = Duration::from_secs(5);

/// That of the interface that leads to `rendezvous_host`, else that of the way out of this host, else that of any
/// interface; `None` if there is none but loopback. An IPv6 address that is valid on its link only has the link's number
/// behind it (`fe80::1%2`).
pub fn reachable(rendezvous_host: &str, patience: &Patience<'_>) -> Result<Option<String>, Interrupted> {
    for target in [rendezvous_host, SOME_ADDRESS_ELSEWHERE] {
        if let Some(found) = on_the_way_to(target, patience)?.filter(|found| !found.ip().is_loopback()) {
            return Ok(Some(written(found)));
        }
    }
    let others = |address: &IpAddr| !address.is_loopback();
    Ok(of_interfaces().into_iter().find(others).map(|address| address.to_string()))
}

fn written(found: SocketAddr) -> String {
    match found {
        SocketAddr::V6(address) if address.scope_id() != 0 => {
            format!("{}%{}", address.ip(), address.scope_id())
        }
        _ => found.ip().to_string(),
    }
}

fn on_the_way_to(host: &str, patience: &Patience<'_>) -> Result<Option<SocketAddr>, Interrupted> {
    if host.is_empty() {
        return Ok(None);
    }
    let targets = match Lookup::default().resolve(host, PORT, &patience.at_most(LOOKUP_TIME), system) {
        Ok(targets) => targets,
        Err(Unresolved::Interrupted(interrupted)) => return Err(interrupted),
        Err(_) => return Ok(None),
    };
    Ok(targets.into_iter().find_map(|target| {
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let probe = UdpSocket::bind(any).ok()?;
        // Sends nothing: it only chooses the way.
        probe.connect(target).ok()?;
        probe.local_addr().ok().filter(|found| !found.ip().is_unspecified())
    }))
}

// How the kernel is asked for all addresses, and how it answers (linux/rtnetlink.h, linux/if_addr.h): the numbers in these
// messages are in the host's order.
const GET_ADDRESS: u16 = 22;
const NEW_ADDRESS: u16 = 20;
const DONE: u16 = 3;
const REQUEST_ALL: u16 = 0x301;
const HEAD_BYTES: usize = 16;
/// Behind the head: family (1), length of the network's part (1), flags (1), scope (1), interface (4).
const ADDRESS_BYTES: usize = 8;
const ATTRIBUTE_BYTES: usize = 4;
/// The address, and where the interface has another end, this end's.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const EVERYWHERE: u8 = 0;

/// Addresses of this host's interfaces that are valid everywhere: those of IPv4, then those of IPv6. None where the
/// kernel does not say.
fn of_interfaces() -> Vec<IpAddr> {
    let mut found = ask_for_addresses().unwrap_or_default();
    found.sort_by_key(IpAddr::is_ipv6);
    found
}

fn ask_for_addresses() -> rustix::io::Result<Vec<IpAddr>> {
    // Without a protocol it is that of addresses and routes (NETLINK_ROUTE, which is 0).
    let asking = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&asking, Timeout::Recv, Some(Duration::from_secs(1)))?;
    const BYTES: usize = HEAD_BYTES + ADDRESS_BYTES;
    let mut request = [0; BYTES];
    request[..4].copy_from_slice(&(BYTES as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&GET_ADDRESS.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_ALL.to_ne_bytes());
    sendto(&asking, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut found = Vec::new();
    let mut bytes = vec![0; 32 * 1024];
    loop {
        let (count, _) = recv(&asking, &mut bytes[..], RecvFlags::empty())?;
        if count == 0 || read_addresses(&bytes[..count], &mut found) {
            return Ok(found);
        }
    }
}

/// Takes the addresses out of a part of the answer; whether it was the last.
fn read_addresses(mut rest: &[u8], found: &mut Vec<IpAddr>) -> bool {
    while let Some((head, _)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = u16::from_ne_bytes([head[4], head[5]]);
        let Some(body) = rest.get(HEAD_BYTES..length) else { return true };
        match kind {
            NEW_ADDRESS => found.extend(read_address(body)),
            DONE => return true,
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

fn read_address(body: &[u8]) -> Option<IpAddr> {
    let (about, mut rest) = body.split_first_chunk::<ADDRESS_BYTES>()?;
    if about[3] != EVERYWHERE {
        return None;
    }
    let mut found = None;
    while let Some((head, _)) = rest.split_first_chunk::<ATTRIBUTE_BYTES>() {
        let length = u16::from_ne_bytes([head[0], head[1]]) as usize;
        let kind = u16::from_ne_bytes([head[2], head[3]]);
        let value = rest.get(ATTRIBUTE_BYTES..length)?;
        if kind == LOCAL || (kind == ADDRESS && found.is_none()) {
            found = match value.len() {
                4 => value.try_into().ok().map(|bytes: [u8; 4]| IpAddr::V4(Ipv4Addr::from(bytes))),
                16 => value.try_into().ok().map(|bytes: [u8; 16]| IpAddr::V6(Ipv6Addr::from(bytes))),
                _ => None,
            };
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience() -> Patience<'static> {
        Patience::new(Duration::from_secs(20), &|| false)
    }

    #[test]
    fn loopback_is_no_address_for_others() {
        let found = on_the_way_to("127.0.0.1", &patience()).expect("nobody interrupts");
        assert_eq!(found.map(|found| found.ip()), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let found = reachable("127.0.0.1", &patience()).expect("nobody interrupts");
        assert!(found.is_none_or(|found| !found.starts_with("127.")));
    }

    #[test]
    fn a_name_that_leads_nowhere_leaves_the_way_out() {
        let patience = patience();
        assert_eq!(reachable("", &patience), reachable("no-such-host.invalid", &patience));
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (HEAD_BYTES + body.len()) as u32;
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
    }

    fn address(scope: u8, values: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, 24, 0, scope, 1, 0, 0, 0];
        for (kind, value) in values {
            body.extend_from_slice(&((ATTRIBUTE_BYTES + value.len()) as u16).to_ne_bytes());
            body.extend_from_slice(&kind.to_ne_bytes());
            body.extend_from_slice(value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        message(NEW_ADDRESS, &body)
    }

    #[test]
    fn addresses_that_count_everywhere_are_taken_from_the_kernels_answer() {
        let answer = [
            address(EVERYWHERE, &[(ADDRESS, &[10, 0, 0, 1]), (3, b"eth0\0")]),
            address(EVERYWHERE, &[(ADDRESS, &[10, 0, 0, 9]), (LOCAL, &[10, 0, 0, 2])]),
            address(253, &[(ADDRESS, &[0xfe; 16])]),
            address(EVERYWHERE, &[(ADDRESS, &[0xfd; 16])]),
        ];
        let mut found = Vec::new();
        assert!(!read_addresses(&answer.concat(), &mut found));
        assert!(read_addresses(&message(DONE, &[0; 4]), &mut found));
        let expected = ["10.0.0.1", "10.0.0.2", "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd"];
        assert_eq!(found, expected.map(|text| text.parse::<IpAddr>().expect("it is one")));
    }

    #[test]
    fn the_kernel_says_which_addresses_there_are() {
        let found = ask_for_addresses().expect("it answers");
        assert!(found.iter().all(|address| !address.is_unspecified()), "{found:?}");
    }

    #[test]
    fn an_answer_that_is_cut_ends_the_reading() {
        let whole = address(EVERYWHERE, &[(ADDRESS, &[10, 0, 0, 1])]);
        for end in 0..whole.len() {
            let mut found = Vec::new();
            read_addresses(&whole[..end], &mut found);
            assert!(found.is_empty(), "{end} bytes: {found:?}");
        }
        assert!(read_addresses(&[0; HEAD_BYTES], &mut Vec::new()), "a message of no length goes on for ever");
    }
}
