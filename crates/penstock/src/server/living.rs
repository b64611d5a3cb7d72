//! What a submission is about may be any number of bytes: whoever works on it shows meanwhile that it lives.

use super::ports::Ports;
use super::shard_memory::Memory;
use penstock_proto::shard::{Fold, Folded, Home, NonFiniteFrom};
use penstock_proto::{Rank, TensorId};

/// The memory, and those who have to be shown that this thread lives however long it works on it.
pub(super) struct Living<'a> {
    pub(super) memory: &'a mut Memory,
    pub(super) ports: &'a mut Ports,
}

impl Living<'_> {
    /// What takes no turn of the loop for so long shows it now.
    fn beat(&mut self) {
        if self.memory.take_long() {
            self.ports.remotes().for_each(|(_, remote)| remote.beat());
        }
    }
}

impl Home for Living<'_> {
    fn fold(
        &mut self,
        tensor: TensorId,
        chunk: u32,
        fold: &Fold,
        writers: &[Rank],
    ) -> Result<Folded, NonFiniteFrom> {
        let folded = self.memory.fold(tensor, chunk, fold, writers);
        self.beat();
        folded
    }

    fn commit(&mut self, tensor: TensorId, chunk: u32) {
        self.memory.commit(tensor, chunk);
    }

    fn load(&mut self, tensor: TensorId, chunk: u32, slot: u32, part: u32, writer: Rank) {
        self.memory.load(tensor, chunk, slot, part, writer);
        self.beat();
    }

    fn flush(&mut self, tensor: TensorId, chunk: u32) -> bool {
        let flushed = self.memory.flush(tensor, chunk);
        self.beat();
        flushed
    }

    fn publish(&mut self, tensor: TensorId, chunk: u32, version: u64, steps: u64) {
        self.memory.publish(tensor, chunk, version, steps);
        self.beat();
    }

    fn progress(&mut self, tensor: TensorId, version: u64) {
        self.memory.progress(tensor, version);
    }

    fn folded(&mut self, tensor: TensorId, writer: Rank, count: u64) {
        self.memory.folded(tensor, writer, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::ports::Port;
    use crate::server::remote::Remote;
    use crate::server::shard::Flags;
    use crate::wire::travel::members::{plain_tensor, terms};
    use penstock_fabric::memory::{ExtentLayout, HomeRegions};
    use penstock_fabric::net::stream::Stream;
    use penstock_kernels::Dtype;
    use penstock_proto::chunk::Cut;
    use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
    use penstock_proto::peer::{PeerId, Role};
    use penstock_proto::placement::Extent;
    use penstock_proto::shard::Shard;
    use penstock_proto::submission::Submission;
    use penstock_proto::travel::Travel;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    // A server that took long over one clock, or over one after the other, was lost to whoever is on another host.
    #[test]
    fn who_is_on_another_host_hears_that_a_shard_lives_while_it_works() {
        const LEASE: Duration = Duration::from_secs(10);
        const BYTES: u64 = 4096;
        let spec = plain_tensor("w", BYTES / 4, Travel::default());
        let layout = ExtentLayout::new(Cut::new(BYTES, 4096), Extent { first: 0, count: 1 }, Dtype::F32, 0);
        let (mut homes, _) = HomeRegions::new("w", layout).unwrap().split(&[0], 1);
        let (mut machine, mut memory, mut ports) =
            (Shard::new(1), Memory::new(0, Flags::new().unwrap()), Ports::new(1));
        memory.declare(0, spec.plan(), Arc::new(terms(&spec.travel)), homes.remove(0), spec.consistency, 1);
        machine.declare(0, spec, 1, vec![0]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = PeerId::first(Role::Follower, 0);
        let mut remote = Remote::new(1, peer, None, LEASE);
        remote.attach(Stream::plain(listener.accept().unwrap().0, LEASE).unwrap(), false);
        ports.open(peer, Port::Remote(Box::new(remote)));
        let mut submit = |submission| {
            let mut home = Living { memory: &mut memory, ports: &mut ports };
            machine.submit(0, &submission, &mut home).unwrap();
        };
        submit(Submission::Zero { tensor: 0 });
        theirs.set_nonblocking(true).unwrap();
        let mut header = [0; HEADER_BYTES];
        let heard = (1..1_000_000).find(|&clock| {
            submit(Submission::Clock { clock });
            theirs.read_exact(&mut header).is_ok()
        });
        assert!(heard.is_some_and(|clock| clock > 1), "{heard:?}");
        let Ok(Header { body: Body::Notice(Notice::Taken), .. }) = Header::decode(&header) else { panic!() };
    }
}
