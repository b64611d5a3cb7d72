//! Which servers a job goes to: the longest-processing-time rule over the declared bandwidth shares.
//!
//! Jobs are taken by falling share; each goes to the servers that carry least so far and have memory left. For jobs of
//! one server each and no shortage of memory, the most loaded server carries at most 4/3 - 1/(3 S) of what the best
//! placement would give it (Graham 1969), S being the number of servers.

use std::collections::BTreeMap;

/// A server as placement sees it: what is left after the jobs that cannot move.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Room {
    /// Bytes not promised yet.
    pub(super) free: u64,
    /// Sum of the shares placed there.
    pub(super) load: f64,
}

/// A job that may go anywhere.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wish<'a> {
    pub(super) name: &'a str,
    pub(super) share: f64,
    /// Bytes on each of its servers.
    pub(super) memory: u64,
    pub(super) servers: usize,
    /// Where it is now: equal choices leave it there.
    pub(super) current: &'a [String],
}

/// Places `wishes`, and counts them into `rooms`. A job without enough servers gets none.
pub(super) fn place<'a>(
    rooms: &mut BTreeMap<String, Room>,
    mut wishes: Vec<Wish<'a>>,
) -> BTreeMap<&'a str, Vec<String>> {
    wishes.sort_by(|a, b| b.share.total_cmp(&a.share).then(b.memory.cmp(&a.memory)).then(a.name.cmp(b.name)));
    wishes.into_iter().map(|wish| (wish.name, choose(rooms, &wish))).collect()
}

fn choose(rooms: &mut BTreeMap<String, Room>, wish: &Wish<'_>) -> Vec<String> {
    let mut fit: Vec<_> = rooms.iter().filter(|(_, room)| room.free >= wish.memory).collect();
    if fit.len() < wish.servers {
        return Vec::new();
    }
    fit.sort_by(|(a, x), (b, y)| {
        let away = |id: &String| !wish.current.contains(id);
        x.load.total_cmp(&y.load).then(away(a).cmp(&away(b))).then(y.free.cmp(&x.free)).then(a.cmp(b))
    });
    let mut chosen: Vec<String> = fit[..wish.servers].iter().map(|(id, _)| (*id).clone()).collect();
    // The order is the servers' numbering within the job: it stays if the servers do.
    chosen.sort_by_key(|id| wish.current.iter().position(|at| at == id).unwrap_or(usize::MAX));
    for id in &chosen {
        let room = rooms.get_mut(id).expect("chosen from the rooms");
        room.free -= wish.memory;
        room.load += wish.share;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rooms(count: usize, free: u64) -> BTreeMap<String, Room> {
        (0..count).map(|i| (format!("s{i}"), Room { free, load: 0.0 })).collect()
    }

    fn wish(name: &str, share: f64, memory: u64, servers: usize) -> Wish<'_> {
        Wish { name, share, memory, servers, current: &[] }
    }

    /// The least load of the most loaded server, by trying everything.
    fn best(shares: &[f64], loads: &mut [f64]) -> f64 {
        let Some((&first, rest)) = shares.split_first() else {
            return loads.iter().copied().fold(0.0, f64::max);
        };
        let mut least = f64::INFINITY;
        for i in 0..loads.len() {
            loads[i] += first;
            least = least.min(best(rest, loads));
            loads[i] -= first;
        }
        least
    }

    proptest! {
        #[test]
        fn no_server_carries_more_than_four_thirds_of_the_best(
            shares in prop::collection::vec(1u32..100, 1..8), servers in 1usize..4
        ) {
            let names: Vec<_> = (0..shares.len()).map(|i| format!("j{i}")).collect();
            let shares: Vec<_> = shares.iter().map(|&share| f64::from(share) / 100.0).collect();
            let mut rooms = rooms(servers, u64::MAX);
            let wishes = names.iter().zip(&shares).map(|(name, &share)| wish(name, share, 0, 1)).collect();
            place(&mut rooms, wishes);
            let most = rooms.values().map(|room| room.load).fold(0.0, f64::max);
            let bound = 4.0 / 3.0 - 1.0 / (3.0 * servers as f64);
            prop_assert!(most <= bound * best(&shares, &mut vec![0.0; servers]) + 1e-9);
        }
    }

    #[test]
    fn a_job_is_never_placed_where_its_memory_does_not_fit() {
        let mut rooms = rooms(2, 100);
        rooms.get_mut("s0").unwrap().free = 10;
        let placed = place(&mut rooms, vec![wish("big", 0.1, 50, 1), wish("wide", 1.0, 50, 2)]);
        assert_eq!(placed["wide"], Vec::<String>::new());
        assert_eq!(placed["big"], ["s1"]);
        assert_eq!(rooms["s1"].free, 50);
    }

    #[test]
    fn a_job_on_several_servers_is_on_each_once() {
        let placed = place(&mut rooms(3, 100), vec![wish("a", 0.5, 1, 3)]);
        assert_eq!(placed["a"], ["s0", "s1", "s2"]);
    }

    #[test]
    fn a_job_stays_where_it_is_when_all_choices_are_equal() {
        let current = ["s2".to_owned(), "s1".to_owned()];
        let wish = Wish { current: &current, ..wish("a", 0.5, 1, 2) };
        assert_eq!(place(&mut rooms(3, 100), vec![wish])["a"], current);
    }
}
