//! Between hosts: what was asked for comes, at the version that was asked for and as new as it was then or newer (S-2); and a
//! ticket comes back behind everything that was there when it was asked for, with it or before (S-3). Of what is broadcast the last
//! publication comes to whoever has asked for the value (S-5). And nothing comes of a chunk that nobody has asked for.

use super::Checker;
use crate::history::Observation;
use crate::rng::digest;
use crate::workload::Workload;
use penstock_proto::submission::NO_TICKET;
use penstock_proto::{Rank, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// A fetch whose ticket has not come back.
#[derive(Debug)]
struct Open {
    ticket: u64,
    version: u64,
    /// Each chunk homed there, and how often it had been published.
    least: Vec<(u32, usize)>,
    /// Of a fetch of the state: chunks that have not come since.
    stateless: Option<BTreeSet<u32>>,
}

/// Watches what workers on other hosts ask for and get.
#[derive(Debug, Default)]
pub struct Asked {
    /// Versions, and digests of what is held of them elsewhere, in the order of their publication.
    published: BTreeMap<(TensorId, u32), Vec<(u64, u64)>>,
    /// The version of each chunk that has come, and which publication it was.
    has: BTreeMap<(Rank, TensorId, u32), (u64, usize)>,
    open: BTreeMap<(Rank, usize, TensorId), Vec<Open>>,
    /// The newest version that a push or a fetch asked for.
    wanted: BTreeMap<(Rank, usize, TensorId), u64>,
    /// The same of chunks that were asked for by themselves.
    wanted_alone: BTreeMap<(Rank, TensorId, u32), u64>,
    /// Tensors whose homes send what is new unasked, and whoever has asked for the value once.
    broadcast: BTreeSet<TensorId>,
    sent: BTreeSet<(Rank, usize, TensorId)>,
    /// The chunks of each tensor at each shard.
    homed: BTreeMap<(usize, TensorId), BTreeSet<u32>>,
    gone: BTreeSet<Rank>,
}

impl Asked {
    /// For the tensors of `workload`.
    pub fn new(workload: &Workload) -> Self {
        let is_sent = |&tensor: &TensorId| workload.spec(tensor).propagation.is_unasked();
        Self { broadcast: workload.ids().filter(is_sent).collect(), ..Self::default() }
    }

    fn publications(&self, tensor: TensorId, chunk: u32) -> &[(u64, u64)] {
        self.published.get(&(tensor, chunk)).map_or(&[], Vec::as_slice)
    }

    fn asked(
        &mut self,
        (rank, shard, tensor): (Rank, usize, TensorId),
        ticket: u64,
        version: u64,
        (state, some): (bool, bool),
        chunks: &[u32],
    ) {
        // A version that is still to come is not waited for by the ticket.
        let published = |&chunk: &u32| {
            let published = self.publications(tensor, chunk);
            let there = !state && published.last().is_some_and(|&(newest, _)| newest >= version);
            (chunk, if there { published.len() } else { 0 })
        };
        let least = chunks.iter().map(published).collect();
        if some {
            for &chunk in chunks {
                let wanted = self.wanted_alone.entry((rank, tensor, chunk)).or_default();
                *wanted = version.max(*wanted);
            }
        } else if !state {
            if self.broadcast.contains(&tensor) {
                self.sent.insert((rank, shard, tensor));
            }
            let wanted = self.wanted.entry((rank, shard, tensor)).or_default();
            *wanted = version.max(*wanted);
        }
        if ticket == NO_TICKET {
            return;
        }
        let stateless = state.then(|| chunks.iter().copied().collect());
        let open = Open { ticket, version, least, stateless };
        self.open.entry((rank, shard, tensor)).or_default().push(open);
    }

    fn came(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        chunk: u32,
        version: u64,
        value: &[u8],
    ) -> Result<(), String> {
        let of_all = |&(of, shard, id): &(Rank, usize, TensorId)| {
            let homed = || self.homed.get(&(shard, id)).is_some_and(|homed| homed.contains(&chunk));
            (of, id) == (rank, tensor) && homed()
        };
        if !self.wanted_alone.contains_key(&(rank, tensor, chunk)) && !self.wanted.keys().any(of_all) {
            return Err(format!("t{tensor}[{chunk}] came to worker {rank}, which has not asked for it"));
        }
        let what = (version, digest(value));
        let Some(last) = self.publications(tensor, chunk).iter().rposition(|&published| published == what)
        else {
            return Err(format!(
                "version {version} of t{tensor}[{chunk}] came to worker {rank} with a value that it never had"
            ));
        };
        self.has.insert((rank, tensor, chunk), (version, last + 1));
        Ok(())
    }

    /// What a fetch still lacks.
    fn lack(&self, rank: Rank, tensor: TensorId, open: &Open) -> Option<String> {
        if let Some(stateless) = &open.stateless {
            return stateless.first().map(|chunk| format!("the state of t{tensor}[{chunk}]"));
        }
        let lacks = |&&(chunk, least): &&(u32, usize)| match self.has.get(&(rank, tensor, chunk)) {
            // Of the same bits it does not matter which publication came.
            Some(&(_, publication)) => {
                let published = self.publications(tensor, chunk);
                publication < least && published[publication - 1] != published[least - 1]
            }
            None => least > 0,
        };
        let (chunk, least) = open.least.iter().find(lacks)?;
        Some(format!("publication {least} of t{tensor}[{chunk}]"))
    }

    fn returned(&mut self, rank: Rank, shard: usize, tensor: TensorId, ticket: u64) -> Result<(), String> {
        let at = (rank, shard, tensor);
        let (back, open) = self
            .open
            .remove(&at)
            .unwrap_or_default()
            .into_iter()
            .partition::<Vec<Open>, _>(|open| open.ticket <= ticket);
        self.open.insert(at, open);
        match back.iter().find_map(|open| Some((open, self.lack(rank, tensor, open)?))) {
            None => Ok(()),
            Some((open, lack)) => Err(format!(
                "shard {shard} returned ticket {ticket} to worker {rank}, which lacks {lack} that it asked for with ticket {}",
                open.ticket
            )),
        }
    }

    /// Whether the home has all that a fetch asks for.
    fn is_there(&self, tensor: TensorId, chunks: impl Iterator<Item = u32>, version: u64) -> bool {
        let newest = |chunk| self.publications(tensor, chunk).last();
        chunks.into_iter().all(|chunk| newest(chunk).is_some_and(|&(newest, _)| newest >= version))
    }
}

impl Checker for Asked {
    fn name(&self) -> &'static str {
        "asked for"
    }

    fn see(&mut self, observation: &Observation<'_>) -> Result<(), String> {
        match *observation {
            Observation::Published { shard, tensor, chunk, version, held, .. } => {
                self.published.entry((tensor, chunk)).or_default().push((version, digest(held)));
                self.homed.entry((shard, tensor)).or_default().insert(chunk);
            }
            Observation::Asked { rank, shard, tensor, ticket, version, state, some, chunks } => {
                self.asked((rank, shard, tensor), ticket, version, (state, some), chunks);
            }
            Observation::Wanted { rank, shard, tensor, version } => {
                let wanted = self.wanted.entry((rank, shard, tensor)).or_default();
                *wanted = version.max(*wanted);
            }
            Observation::Came { rank, tensor, chunk, version, value, .. } => {
                return self.came(rank, tensor, chunk, version, value);
            }
            Observation::Stated { rank, tensor, chunk } => {
                for (_, opens) in self.open.iter_mut().filter(|((of, _, id), _)| (*of, *id) == (rank, tensor))
                {
                    opens
                        .iter_mut()
                        .flat_map(|open| &mut open.stateless)
                        .for_each(|lacks| _ = lacks.remove(&chunk));
                }
            }
            Observation::Returned { rank, shard, tensor, ticket } => {
                return self.returned(rank, shard, tensor, ticket);
            }
            Observation::Crashed { rank } | Observation::Lost { rank } | Observation::Ended { rank, .. } => {
                self.gone.insert(rank);
            }
            _ => {}
        }
        Ok(())
    }

    fn quiet(&mut self) -> Result<(), String> {
        for (&(rank, shard, tensor), opens) in
            self.open.iter().filter(|((rank, ..), _)| !self.gone.contains(rank))
        {
            let there = |open: &&Open| {
                self.is_there(tensor, open.least.iter().map(|&(chunk, _)| chunk), open.version)
            };
            if let Some(open) = opens.iter().find(there) {
                return Err(format!(
                    "worker {rank} asked shard {shard} for version {} of t{tensor} with ticket {}, which never came back though \
                     that is there",
                    open.version, open.ticket
                ));
            }
        }
        for &(rank, shard, tensor) in self.sent.iter().filter(|(rank, ..)| !self.gone.contains(rank)) {
            let mut chunks = self.homed.get(&(shard, tensor)).into_iter().flatten();
            // Of the same bits it does not matter which publication came.
            let lacks = |chunk: &&u32| {
                let published = self.publications(tensor, **chunk);
                let has = self
                    .has
                    .get(&(rank, tensor, **chunk))
                    .and_then(|&(_, publication)| published.get(publication - 1));
                has != published.last()
            };
            if let Some(chunk) = chunks.find(lacks) {
                return Err(format!(
                    "what is new of t{tensor}[{chunk}] did not come to worker {rank} from shard {shard}, which broadcasts it"
                ));
            }
        }
        for (&(rank, tensor, chunk), &version) in &self.wanted_alone {
            let has = self.has.get(&(rank, tensor, chunk)).is_some_and(|&(has, _)| has >= version);
            let is_there = self.is_there(tensor, std::iter::once(chunk), version);
            if !self.gone.contains(&rank) && is_there && !has {
                return Err(format!(
                    "worker {rank} asked for version {version} of t{tensor}[{chunk}] by itself, which is there and never came"
                ));
            }
        }
        for (&(rank, shard, tensor), &version) in &self.wanted {
            let chunks = self.homed.get(&(shard, tensor)).into_iter().flatten().copied();
            let lacks = |chunk| self.has.get(&(rank, tensor, chunk)).is_none_or(|&(has, _)| has < version);
            if !self.gone.contains(&rank)
                && self.is_there(tensor, chunks.clone(), version)
                && let Some(chunk) = chunks.clone().find(|&chunk| lacks(chunk))
            {
                return Err(format!(
                    "worker {rank} asked shard {shard} for version {version} of t{tensor}[{chunk}], which is there \
                     and never came"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_proto::encoding::Encoding;

    const CHUNKS: &[u32] = &[0, 2];

    /// Both chunks are published as version 1.
    fn checker() -> Asked {
        let mut checker = Asked::default();
        for &chunk in CHUNKS {
            see(&mut checker, published(chunk, 1)).unwrap();
        }
        checker
    }

    fn see(checker: &mut Asked, observation: Observation<'_>) -> Result<(), String> {
        checker.see(&observation)
    }

    fn published(chunk: u32, version: u64) -> Observation<'static> {
        Observation::Published { shard: 3, tensor: 0, chunk, version, value: &[7], held: &[7] }
    }

    fn came(chunk: u32, version: u64) -> Observation<'static> {
        let encoding = Encoding::RAW;
        Observation::Came { rank: 1, tensor: 0, chunk, version, encoding, base: 0, value: &[7] }
    }

    fn asked(ticket: u64, version: u64, state: bool) -> Observation<'static> {
        let (some, chunks) = (false, CHUNKS);
        Observation::Asked { rank: 1, shard: 3, tensor: 0, ticket, version, state, some, chunks }
    }

    fn asked_for(ticket: u64, version: u64, chunks: &[u32]) -> Observation<'_> {
        let (state, some) = (false, true);
        Observation::Asked { rank: 1, shard: 3, tensor: 0, ticket, version, state, some, chunks }
    }

    #[test]
    fn a_chunk_that_nobody_has_asked_for_and_one_that_was_and_never_comes_are_seen() {
        let mut checker = checker();
        see(&mut checker, asked_for(1, 1, &[2])).unwrap();
        let unasked = see(&mut checker, came(0, 1)).unwrap_err();
        assert!(unasked.contains("which has not asked for it"), "{unasked}");
        let early = see(&mut checker, returned(1)).unwrap_err();
        assert!(early.contains("lacks publication 1 of t0[2]"), "{early}");
        let lost = checker.quiet().unwrap_err();
        assert!(lost.contains("t0[2] by itself"), "{lost}");
        see(&mut checker, came(2, 1)).unwrap();
        checker.quiet().unwrap();
    }

    fn returned(ticket: u64) -> Observation<'static> {
        Observation::Returned { rank: 1, shard: 3, tensor: 0, ticket }
    }

    /// S-3.
    #[test]
    fn a_ticket_before_what_it_is_for_is_seen() {
        let mut checker = checker();
        see(&mut checker, asked(1, 1, false)).unwrap();
        see(&mut checker, came(0, 1)).unwrap();
        let early = see(&mut checker, returned(1)).unwrap_err();
        assert!(early.contains("lacks publication 1 of t0[2]"), "{early}");
        let mut checker = self::checker();
        see(&mut checker, asked(1, 1, false)).unwrap();
        CHUNKS.iter().for_each(|&chunk| see(&mut checker, came(chunk, 1)).unwrap());
        see(&mut checker, returned(1)).unwrap();
    }

    /// S-2.
    #[test]
    fn what_comes_older_than_it_was_when_it_was_asked_for_is_seen() {
        let mut checker = checker();
        see(&mut checker, asked(NO_TICKET, 0, false)).unwrap();
        CHUNKS.iter().for_each(|&chunk| see(&mut checker, came(chunk, 1)).unwrap());
        see(&mut checker, published(2, 4)).unwrap();
        see(&mut checker, asked(1, 0, false)).unwrap();
        see(&mut checker, returned(1)).unwrap_err();
    }

    #[test]
    fn a_ticket_before_the_state_that_was_asked_for_earlier_is_seen() {
        let mut checker = checker();
        see(&mut checker, asked(NO_TICKET, 0, false)).unwrap();
        CHUNKS.iter().for_each(|&chunk| see(&mut checker, came(chunk, 1)).unwrap());
        see(&mut checker, asked(1, 0, true)).unwrap();
        see(&mut checker, asked(2, 1, false)).unwrap();
        see(&mut checker, Observation::Stated { rank: 1, tensor: 0, chunk: 0 }).unwrap();
        let early = see(&mut checker, returned(2)).unwrap_err();
        assert!(early.contains("the state of t0[2]"), "{early}");
    }

    #[test]
    fn what_is_there_and_never_comes_is_seen_and_what_is_not_there_is_not_missed() {
        let mut checker = checker();
        see(&mut checker, asked(1, 2, false)).unwrap();
        checker.quiet().unwrap();
        CHUNKS.iter().for_each(|&chunk| see(&mut checker, published(chunk, 2)).unwrap());
        checker.quiet().unwrap_err();
        see(&mut checker, Observation::Crashed { rank: 1 }).unwrap();
        checker.quiet().unwrap();
    }

    #[test]
    fn a_result_that_never_comes_is_seen() {
        let mut checker = checker();
        see(&mut checker, Observation::Wanted { rank: 1, shard: 3, tensor: 0, version: 1 }).unwrap();
        see(&mut checker, came(2, 1)).unwrap();
        let lost = checker.quiet().unwrap_err();
        assert!(lost.contains("t0[0], which is there"), "{lost}");
        see(&mut checker, came(0, 1)).unwrap();
        checker.quiet().unwrap();
    }

    #[test]
    fn what_is_broadcast_and_does_not_come_is_seen_once_the_value_was_asked_for() {
        let mut checker = Asked { broadcast: BTreeSet::from([0]), ..checker() };
        see(&mut checker, asked(1, 0, true)).unwrap();
        checker.open.clear();
        checker.quiet().unwrap();
        see(&mut checker, asked(NO_TICKET, 0, false)).unwrap();
        see(&mut checker, came(0, 1)).unwrap();
        let lost = checker.quiet().unwrap_err();
        assert!(lost.contains("t0[2] did not come to worker 1"), "{lost}");
        see(&mut checker, came(2, 1)).unwrap();
        checker.quiet().unwrap();
        see(&mut checker, published(0, 2)).unwrap();
        checker.quiet().unwrap_err();
    }

    /// E-1 and U-1: what a difference to the wrong publication would come to, or an update of one.
    #[test]
    fn a_value_that_the_home_never_had_is_seen() {
        let mut checker = checker();
        see(&mut checker, asked(NO_TICKET, 0, false)).unwrap();
        let strange = see(&mut checker, came(0, 2)).unwrap_err();
        assert!(strange.contains("a value that it never had"), "{strange}");
    }
}
