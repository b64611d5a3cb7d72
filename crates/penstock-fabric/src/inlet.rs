//! A worker as the taker of its submissions sees it: its page, and in it the ring to one shard and the bell.
//!
//! A shard has one for each worker of its host, in a page that the worker writes; a proxy has one for its own worker, in a page
//! of their process. Where the page lies, and who fills the ring, does not matter here: any mapping will do, also one that
//! another host writes from afar.

use crate::doorbell::Bell;
use crate::layout::page;
use crate::region::Mapping;
use crate::ring::{Broken, Consumer, Ring};
use penstock_proto::submission::WORDS;
use std::sync::Arc;

/// What one shard, or its stand-in, takes of one worker. There is one for each ring.
#[derive(Debug)]
pub struct Inlet {
    page: Arc<Mapping>,
    ring_at: usize,
    consumer: Consumer,
}

impl Inlet {
    /// For `shard`, of a worker that has submitted nothing so far.
    ///
    /// # Panics
    /// If the page has no ring to that shard.
    pub fn new(page: Arc<Mapping>, shard: u32) -> Self {
        let (ring_at, room) = (page::ring(shard), page::bytes(shard + 1));
        assert!(room <= page.len(), "a page of {} bytes has no ring to shard {shard}", page.len());
        Self { page, ring_at, consumer: Consumer::default() }
    }

    #[inline]
    fn ring(&self) -> &Ring {
        self.page.at(self.ring_at)
    }

    /// Whether nothing waits here. A broken ring counts as not empty, so that it is found out.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.consumer.is_empty(self.ring())
    }

    /// How many submissions wait here now, at most: see [`Consumer::waiting`].
    #[inline]
    pub fn waiting(&self) -> u64 {
        self.consumer.waiting(self.ring())
    }

    /// Takes the next submission, if there is one.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<[u64; WORDS]>, Broken> {
        self.consumer.pop(self.page.at(self.ring_at))
    }

    /// What the worker sleeps on.
    #[inline]
    pub fn bell(&self) -> &Bell {
        self.page.at(page::BELL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{CAPACITY, Producer};

    /// A page that no other process has, as one that is written from afar.
    #[test]
    fn submissions_of_any_page_are_taken_by_the_shard_that_they_were_meant_for() {
        let page = Mapping::private(page::bytes(2)).unwrap();
        let mut inlets = [0, 1].map(|shard| Inlet::new(Arc::clone(&page), shard));
        let mut producer = Producer::default();
        for number in 0..3 * CAPACITY {
            producer.push(page.at(page::ring(1)), [number; WORDS]).unwrap();
            assert!(inlets[0].is_empty() && inlets[0].waiting() == 0);
            assert_eq!((inlets[1].is_empty(), inlets[1].waiting()), (false, 1));
            assert_eq!(inlets[1].pop(), Ok(Some([number; WORDS])));
            assert_eq!(inlets[1].pop(), Ok(None));
        }
        assert!(std::ptr::eq(inlets[0].bell(), inlets[1].bell()));
    }

    #[test]
    #[should_panic(expected = "no ring to shard 2")]
    fn a_page_without_a_ring_to_the_shard_is_refused() {
        Inlet::new(Mapping::private(page::bytes(2)).unwrap(), 2);
    }
}
