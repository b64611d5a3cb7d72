//! What is seen of a run, and the line that each thing seen is logged as.
//!
//! A line has five columns: the tick, who, what, on which tensor (and chunk), and the details. docs/simulation.md explains
//! them; a test compares it with this file.

use crate::rng::digest;
use penstock_proto::encoding::Encoding;
use penstock_proto::{Rank, TensorId};
use std::collections::BTreeMap;
use std::fmt;

/// One thing that happened.
#[derive(Debug, Clone, Copy)]
pub enum Observation<'a> {
    /// A worker handed its update of a chunk to the link.
    Submitted {
        /// Who.
        rank: Rank,
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// The update's stamp.
        stamp: u64,
    },
    /// A worker said that it has nothing for some chunks.
    Skipped {
        /// Who.
        rank: Rank,
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// The stamp of the update that it has for others.
        stamp: u64,
    },
    /// A worker has joined.
    Joined {
        /// Who.
        rank: Rank,
    },
    /// A worker stands at a barrier.
    Stood {
        /// Who.
        rank: Rank,
        /// The number of the barrier: one is in front of iteration N, which is 3 N, or before or behind loads in it.
        round: u64,
    },
    /// A worker has passed it.
    Passed {
        /// Who.
        rank: Rank,
        /// The number of the barrier: one is in front of iteration N, which is 3 N, or before or behind loads in it.
        round: u64,
    },
    /// A worker no longer stands there, and has not passed.
    InVain {
        /// Who.
        rank: Rank,
        /// The number of the barrier: one is in front of iteration N, which is 3 N, or before or behind loads in it.
        round: u64,
    },
    /// A worker begins to load a tensor.
    Loads {
        /// Who.
        rank: Rank,
        /// The tensor.
        tensor: TensorId,
        /// The number of the load; its first value is number 0.
        load: u64,
        /// What it writes.
        value: &'a [u8],
    },
    /// A load has returned: every shard has taken it.
    Loaded {
        /// Whose.
        rank: Rank,
        /// The tensor.
        tensor: TensorId,
        /// Its number.
        load: u64,
    },
    /// A worker completed an iteration.
    Clocked {
        /// Who.
        rank: Rank,
        /// Its clock now.
        clock: u64,
    },
    /// A shard folded lanes.
    Folded {
        /// Which shard.
        shard: usize,
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Whose lanes, in order.
        writers: &'a [Rank],
    },
    /// A shard published a chunk.
    Published {
        /// Which shard.
        shard: usize,
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Its version.
        version: u64,
        /// Its value.
        value: &'a [u8],
        /// What of it readers see from now on, on every host: the value, unless a filter holds something back.
        held: &'a [u8],
    },
    /// A worker read a chunk.
    Read {
        /// Who.
        rank: Rank,
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// The read's own slack.
        slack: Option<u32>,
        /// Whether it is on another host, and saw what had been sent there.
        mirrored: bool,
        /// The version that it saw.
        version: u64,
        /// The value that it saw.
        value: &'a [u8],
    },
    /// A shard refused a submission.
    Refused {
        /// Which shard.
        shard: usize,
        /// Whose.
        rank: Rank,
        /// Why.
        why: &'a str,
    },
    /// A shard goes on without a worker.
    Removed {
        /// Which shard.
        shard: usize,
        /// Without whom.
        rank: Rank,
        /// Whether it said goodbye.
        clean: bool,
    },
    /// A worker died.
    Crashed {
        /// Who.
        rank: Rank,
    },
    /// The control thread says that a worker is lost, of which no sign of life came for a lease.
    Lost {
        /// Who.
        rank: Rank,
    },
    /// A worker turned hostile: nothing it submits from now on means anything.
    Turned {
        /// Who.
        rank: Rank,
    },
    /// A connection between hosts was cut, fell silent or carried something damaged.
    Cut {
        /// Whose.
        rank: Rank,
        /// To which shard.
        shard: usize,
        /// What happened to it.
        how: &'a str,
    },
    /// A connection between hosts stands, for the first time or again.
    Connected {
        /// Whose.
        rank: Rank,
        /// To which shard.
        shard: usize,
        /// Frames that the worker knows to be taken.
        taken: u64,
        /// Frames submitted.
        submitted: u64,
    },
    /// A worker asked a shard of another host for what has changed, or for the optimizer's state.
    Asked {
        /// Who.
        rank: Rank,
        /// Which shard.
        shard: usize,
        /// The tensor.
        tensor: TensorId,
        /// The ticket.
        ticket: u64,
        /// The least version of each chunk.
        version: u64,
        /// Whether it is the state.
        state: bool,
        /// Whether it is of some chunks alone.
        some: bool,
        /// The chunks, which are homed there.
        chunks: &'a [u32],
    },
    /// A push asks a shard of another host for its result.
    Wanted {
        /// Whose.
        rank: Rank,
        /// Which shard.
        shard: usize,
        /// The tensor.
        tensor: TensorId,
        /// The version of each chunk that holds the push.
        version: u64,
    },
    /// A value came from a shard of another host.
    Came {
        /// To whom.
        rank: Rank,
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Its version.
        version: u64,
        /// How its payload was encoded.
        encoding: Encoding,
        /// The publication that the payload was a difference against; 0: it was whole.
        base: u64,
        /// Its value, decoded.
        value: &'a [u8],
    },
    /// A contribution, or a value to be loaded, came from a worker of another host and stands in its lane.
    Lodged {
        /// Where.
        shard: usize,
        /// Whose.
        rank: Rank,
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// How its payload was encoded.
        encoding: Encoding,
        /// What stands in the worker's lane.
        sent: &'a [u8],
        /// What stands in the shard's copy of it, decoded.
        came: &'a [u8],
    },
    /// The optimizer's state of a chunk came from a shard of another host.
    Stated {
        /// To whom.
        rank: Rank,
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
    },
    /// An update came that was folded elsewhere too, or value and state whole; the value that this made comes with it.
    Updated {
        /// To whom.
        rank: Rank,
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Whether it is whole.
        whole: bool,
    },
    /// A ticket came back.
    Returned {
        /// To whom.
        rank: Rank,
        /// From which shard.
        shard: usize,
        /// The tensor.
        tensor: TensorId,
        /// The ticket.
        ticket: u64,
    },
    /// A fold that waited is in the value.
    Committed {
        /// Which shard.
        shard: usize,
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
    },
    /// A worker is done.
    Ended {
        /// Who.
        rank: Rank,
        /// How.
        how: &'a str,
    },
    /// A shard tells a worker on another host who feeds it from now on.
    Routed {
        /// Which shard.
        shard: usize,
        /// Whom.
        rank: Rank,
        /// The route's number.
        epoch: u32,
        /// By stripe: another worker, or the shard itself.
        parents: &'a [Option<Rank>],
    },
    /// A shard hears that a worker stands at its parents.
    Attached {
        /// Which shard.
        shard: usize,
        /// Who.
        rank: Rank,
        /// The route's number.
        epoch: u32,
        /// Of which stripes, a bit each.
        stripes: u64,
    },
    /// A shard hears that a worker has left its parents.
    Strayed {
        /// Which shard.
        shard: usize,
        /// Who.
        rank: Rank,
        /// The route's number.
        epoch: u32,
        /// Of which stripes, a bit each.
        stripes: u64,
        /// Whose fault that was; [`Rank::MAX`]: nobody's.
        parent: Rank,
    },
    /// A worker is fed by another no more.
    Left {
        /// Who.
        rank: Rank,
        /// What of which shard.
        shard: usize,
        /// By whom; `None`: by nobody.
        parent: Option<Rank>,
        /// Why.
        why: &'a str,
    },
    /// A worker passed on something else than the home's frame.
    Lied {
        /// Who.
        rank: Rank,
        /// To whom.
        child: Rank,
        /// What it did.
        how: &'a str,
    },
    /// A worker's proxies look at nothing for a while.
    Hung {
        /// Whose.
        rank: Rank,
    },
    /// A connection between workers was cut, or fell silent.
    Severed {
        /// Whose, that is fed.
        rank: Rank,
        /// By whom.
        parent: Rank,
        /// What of which shard.
        shard: usize,
        /// What happened to it.
        how: &'a str,
    },
}

impl Observation<'_> {
    /// The word in the log's third column.
    pub fn event(&self) -> &'static str {
        match self {
            Self::Submitted { .. } => "submit",
            Self::Skipped { .. } => "skip",
            Self::Clocked { .. } => "clock",
            Self::Loads { .. } => "load",
            Self::Loaded { .. } => "loaded",
            Self::Joined { .. } => "join",
            Self::Stood { .. } => "stand",
            Self::Passed { .. } => "pass",
            Self::InVain { .. } => "vain",
            Self::Folded { .. } => "fold",
            Self::Published { .. } => "publish",
            Self::Read { .. } => "read",
            Self::Refused { .. } => "refuse",
            Self::Removed { .. } => "remove",
            Self::Crashed { .. } => "crash",
            Self::Lost { .. } => "lose",
            Self::Turned { .. } => "turn",
            Self::Cut { .. } => "cut",
            Self::Connected { .. } => "connect",
            Self::Asked { .. } => "ask",
            Self::Wanted { .. } => "want",
            Self::Came { .. } => "come",
            Self::Lodged { .. } => "lodge",
            Self::Stated { .. } => "state",
            Self::Updated { whole: false, .. } => "update",
            Self::Updated { whole: true, .. } => "whole",
            Self::Returned { .. } => "return",
            Self::Committed { .. } => "commit",
            Self::Ended { .. } => "end",
            Self::Routed { .. } => "route",
            Self::Attached { .. } => "attach",
            Self::Strayed { .. } => "stray",
            Self::Left { .. } => "quit",
            Self::Lied { .. } => "lie",
            Self::Hung { .. } => "hang",
            Self::Severed { .. } => "sever",
        }
    }

    fn actor(&self) -> String {
        match self {
            Self::Folded { shard, .. }
            | Self::Published { shard, .. }
            | Self::Committed { shard, .. }
            | Self::Lodged { shard, .. }
            | Self::Refused { shard, .. }
            | Self::Routed { shard, .. }
            | Self::Attached { shard, .. }
            | Self::Strayed { shard, .. }
            | Self::Removed { shard, .. } => format!("shard {shard}"),
            Self::Submitted { rank, .. }
            | Self::Skipped { rank, .. }
            | Self::Clocked { rank, .. }
            | Self::Loads { rank, .. }
            | Self::Loaded { rank, .. }
            | Self::Joined { rank }
            | Self::Stood { rank, .. }
            | Self::Passed { rank, .. }
            | Self::InVain { rank, .. }
            | Self::Read { rank, .. }
            | Self::Crashed { rank }
            | Self::Lost { rank }
            | Self::Turned { rank }
            | Self::Cut { rank, .. }
            | Self::Connected { rank, .. }
            | Self::Asked { rank, .. }
            | Self::Wanted { rank, .. }
            | Self::Came { rank, .. }
            | Self::Stated { rank, .. }
            | Self::Updated { rank, .. }
            | Self::Returned { rank, .. }
            | Self::Left { rank, .. }
            | Self::Lied { rank, .. }
            | Self::Hung { rank }
            | Self::Severed { rank, .. }
            | Self::Ended { rank, .. } => format!("worker {rank}"),
        }
    }

    fn place(&self) -> String {
        match self {
            Self::Submitted { tensor, chunk, .. }
            | Self::Skipped { tensor, chunk, .. }
            | Self::Folded { tensor, chunk, .. }
            | Self::Published { tensor, chunk, .. }
            | Self::Came { tensor, chunk, .. }
            | Self::Lodged { tensor, chunk, .. }
            | Self::Stated { tensor, chunk, .. }
            | Self::Updated { tensor, chunk, .. }
            | Self::Committed { tensor, chunk, .. }
            | Self::Read { tensor, chunk, .. } => format!("t{tensor}[{chunk}]"),
            Self::Asked { tensor, .. }
            | Self::Wanted { tensor, .. }
            | Self::Returned { tensor, .. }
            | Self::Loads { tensor, .. }
            | Self::Loaded { tensor, .. } => format!("t{tensor}"),
            _ => "-".to_owned(),
        }
    }

    fn details(&self) -> String {
        match self {
            Self::Submitted { stamp, .. } | Self::Skipped { stamp, .. } => format!("stamp={stamp}"),
            Self::Clocked { clock, .. } => format!("clock={clock}"),
            Self::Loads { load, value, .. } => format!("load={load} digest={:016x}", digest(value)),
            Self::Loaded { load, .. } => format!("load={load}"),
            Self::Folded { writers, .. } => format!("writers={writers:?}"),
            Self::Published { version, value, .. } => {
                format!("version={version} digest={:016x}", digest(value))
            }
            Self::Came { version, encoding, base, value, .. } => {
                let (encoding, digest) = (encoding.0, digest(value));
                format!("version={version} digest={digest:016x} encoding={encoding} base={base}")
            }
            Self::Lodged { rank, encoding, came, .. } => {
                format!("worker={rank} digest={:016x} encoding={}", digest(came), encoding.0)
            }
            Self::Read { slack, version, value, .. } => {
                let slack = slack.map_or_else(|| "own".to_owned(), |slack| slack.to_string());
                format!("version={version} digest={:016x} slack={slack}", digest(value))
            }
            Self::Refused { rank, why, .. } => format!("worker={rank} why={why:?}"),
            Self::Removed { rank, clean, .. } => format!("worker={rank} clean={clean}"),
            Self::Stood { round, .. } | Self::Passed { round, .. } | Self::InVain { round, .. } => {
                format!("barrier={round}")
            }
            Self::Joined { .. }
            | Self::Crashed { .. }
            | Self::Lost { .. }
            | Self::Turned { .. }
            | Self::Hung { .. }
            | Self::Stated { .. }
            | Self::Updated { .. }
            | Self::Committed { .. } => String::new(),
            Self::Cut { shard, how, .. } => format!("shard={shard} how={how:?}"),
            Self::Connected { shard, taken, submitted, .. } => {
                format!("shard={shard} taken={taken} submitted={submitted}")
            }
            Self::Asked { shard, ticket, version, state, some, chunks, .. } => {
                let what = if *state { "state".to_owned() } else { format!("{version}") };
                let of = if *some { format!(" chunks={chunks:?}") } else { String::new() };
                format!("shard={shard} ticket={ticket} version={what}{of}")
            }
            Self::Wanted { shard, version, .. } => format!("shard={shard} version={version}"),
            Self::Returned { shard, ticket, .. } => format!("shard={shard} ticket={ticket}"),
            Self::Ended { how, .. } => format!("how={how:?}"),
            Self::Routed { rank, epoch, parents, .. } => {
                let name = |parent: &Option<Rank>| parent.map_or_else(|| "-".to_owned(), |it| it.to_string());
                let parents: Vec<String> = parents.iter().map(name).collect();
                format!("worker={rank} epoch={epoch} parents=[{}]", parents.join(", "))
            }
            Self::Attached { rank, epoch, stripes, .. } => {
                format!("worker={rank} epoch={epoch} stripes={stripes:b}")
            }
            Self::Strayed { rank, epoch, stripes, parent, .. } => {
                let parent = if *parent == Rank::MAX { "-".to_owned() } else { parent.to_string() };
                format!("worker={rank} epoch={epoch} stripes={stripes:b} parent={parent}")
            }
            Self::Left { shard, parent, why, .. } => {
                let parent = parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string());
                format!("shard={shard} parent={parent} why={why:?}")
            }
            Self::Lied { child, how, .. } => format!("child={child} how={how:?}"),
            Self::Severed { parent, shard, how, .. } => format!("parent={parent} shard={shard} how={how:?}"),
        }
    }
}

impl fmt::Display for Observation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = format!("{:<9} {:<8} {:<7} {}", self.actor(), self.event(), self.place(), self.details());
        f.write_str(line.trim_end())
    }
}

/// How often each thing happened, so that a test can show that it met what it is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// Counts one more.
    pub fn add(&mut self, observation: &Observation<'_>) {
        *self.0.entry(observation.event()).or_default() += 1;
    }

    /// Counts what is nobody's to check, so often.
    pub fn count(&mut self, word: &'static str, times: u64) {
        if times > 0 {
            *self.0.entry(word).or_default() += times;
        }
    }

    /// How often `event` (a word of the third column) happened.
    pub fn of(&self, event: &str) -> u64 {
        self.0.get(event).copied().unwrap_or(0)
    }

    /// The words that happened, in alphabetical order.
    pub fn words(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.keys().copied()
    }

    /// Adds another run's.
    pub fn merge(&mut self, other: &Self) {
        for (event, count) in &other.0 {
            *self.0.entry(event).or_default() += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(|(event, count)| format!("{event} {count}")).collect();
        f.write_str(&words.join(", "))
    }
}
