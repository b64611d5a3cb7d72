//! Where time goes, by [layer](penstock_proto::layer).

use penstock_proto::layer::{Layer, Nanos};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time that threads have spent in each layer, by the clock on the wall: a thread that lost its core meanwhile counts that too.
#[derive(Debug, Default)]
pub struct Spent([AtomicU64; Layer::ALL.len()]);

impl Spent {
    /// Does something that belongs to a layer.
    pub fn on<R>(&self, layer: Layer, work: impl FnOnce() -> R) -> R {
        let since = Instant::now();
        let result = work();
        self.add(layer, since.elapsed());
        result
    }

    /// The same where time is counted only if somebody wants to know.
    pub fn on_if<R>(spent: Option<&Self>, layer: Layer, work: impl FnOnce() -> R) -> R {
        match spent {
            Some(spent) => spent.on(layer, work),
            None => work(),
        }
    }

    /// So much more was spent in a layer.
    pub fn add(&self, layer: Layer, time: Duration) {
        self.0[layer as usize].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// All of it so far.
    pub fn nanos(&self) -> Nanos {
        std::array::from_fn(|layer| self.0[layer].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_where_it_was_spent_and_nowhere_else() {
        let spent = Spent::default();
        assert_eq!(spent.on(Layer::Fold, || 7), 7);
        spent.add(Layer::Send, Duration::from_millis(2));
        let [filter, encode, send, receive, decode, _] = spent.nanos();
        assert_eq!([filter, encode, send, receive, decode], [0, 0, 2_000_000, 0, 0]);
        assert_eq!(Spent::on_if(None, Layer::Filter, || 7), 7);
    }
}
