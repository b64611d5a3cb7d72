//! The thread of a relay: it connects, listens, and sends what no call has sent itself.

use super::{HOME, Setup, Shared, State};
use crate::limits;
use crate::wait::poll;
use crate::wire::Ended;
use crate::wire::items::ItemWire;
use crate::wire::redial::{Caller, Failed, Redial};
use crate::wire::vigil::{Vigil, look_every};
use crate::worker::link::lock;
use penstock_fabric::items::waiters::{Announcing, announce_then_look};
use penstock_proto::account::Account;
use penstock_proto::error::JobFailure;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::thread::sched_yield;
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

/// How long what comes is left to calls, since one was seen to have taken something: then this thread looks again.
const LEFT_TO_CALLS: Duration = Duration::from_millis(1);
/// Once calls have taken more bytes than this in that time nothing is left to them: more comes while they compute with the last, and
/// two threads take it faster.
const MOST_LEFT: u64 = 8 << 10;
/// Times in a row that it passes by, since a call is at the connection just then: it may be one that only sends.
const MOST_PASSED: u32 = 2;

impl State {
    /// Says that nobody looks for rows of this worker from now on.
    pub(super) fn announce(&mut self, by: &Announcing) {
        for (id, _) in &self.own {
            if let Some(memory) = self.node.memory(*id) {
                memory.announce_follower(by);
            }
        }
    }
}

impl Caller for Shared {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire) || self.setup.fate.is_over()
    }

    fn sleep(&self, longest: Duration) {
        self.wakeup.sleep(longest);
        self.wakeup.clear();
    }
}

impl Shared {
    pub(super) fn ring(&self) {
        self.wakeup.ring();
    }

    pub(super) fn run(&self) {
        let Setup { server, rank, purpose, dialer, fate, lease } = &self.setup;
        let (mut redial, mut vigil) = (Redial::new(Arc::clone(dialer), *purpose), Vigil::new(*lease));
        let mut heard = 0;
        while !self.is_over() {
            match redial.connect(&mut vigil, heard, self) {
                Ok(stream) => {
                    let before = heard;
                    let why = match stream.as_fd().try_clone_to_owned() {
                        Ok(socket) => {
                            heard += self.serve(ItemWire::new(stream, *lease, Account::default()), &socket);
                            "it ended".to_owned()
                        }
                        Err(error) => {
                            tracing::warn!(%error, "a connection for items could not be used");
                            let lack = limits::explain_io(&error);
                            vigil.lacks(Some(lack.clone()));
                            lack
                        }
                    };
                    redial.ended(heard > before, why);
                }
                Err(Failed::GivenUp) => break,
                Err(failed) => {
                    let place = " on a connection for items";
                    if let Some(failure) = failed.failure(&vigil, (*server, *rank), "it", place) {
                        fate.fail(failure);
                    }
                }
            }
        }
        lock(&self.state).wire = None;
    }

    fn fail(&self, reason: String) {
        self.setup.fate.fail(JobFailure::ServerLost { server: self.setup.server, reason });
    }

    /// Listens as long as the connection stands; returns how much it brought.
    fn serve(&self, wire: ItemWire, socket: &OwnedFd) -> u64 {
        let mut heard = 0;
        // When calls were last seen to have taken what had come.
        let mut helped: Option<Instant> = None;
        let (mut is_left, mut rung, mut passed) = (false, false, 0);
        self.left_to_calls.store(false, Ordering::Release);
        {
            let mut state = lock(&self.state);
            state.wire = Some(wire);
            state.node.connected(HOME);
        }
        while !self.is_over() {
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                // A call looks at this moment.
                Err(TryLockError::WouldBlock) if is_left && !rung && passed < MOST_PASSED => {
                    passed += 1;
                    rung = self.sleep_beside_calls();
                    continue;
                }
                Err(_) => lock(&self.state),
            };
            passed = 0;
            let State { node, wire, .. } = &mut *state;
            let Some(open) = wire else { break };
            let taken = open.heard() - heard;
            if taken > MOST_LEFT || is_left && !self.left_to_calls.load(Ordering::Acquire) {
                helped = None;
            } else if taken > 0 {
                helped = Some(Instant::now());
            }
            let received = open.receive(node, HOME).and_then(|more| open.keep_vigil().map(|()| more));
            heard = open.heard();
            let stands = state.transmit();
            match received {
                Ok(true) if stands => {
                    // It is not through: the next turn must take the lock.
                    rung = true;
                    continue;
                }
                Ok(_) if stands => {}
                Err(Ended::Peer(what)) => {
                    self.fail(format!("it broke the protocol: {what}"));
                    break;
                }
                Err(Ended::Exhausted { what, why }) => {
                    self.fail(format!("it needs more than it may have: for {what} {why}"));
                    break;
                }
                _ => {
                    state.wire = None;
                    state.burst.end();
                    state.node.lost(HOME);
                    break;
                }
            }
            let sends = state.sends;
            if state.burst.goes_on(sends, Instant::now) {
                drop(state);
                // Those that set rows, and the server, may need this core.
                sched_yield();
                rung = true;
                continue;
            }
            let stands = announce_then_look(&mut *state, State::announce, State::transmit);
            let held = state.wire.as_ref().is_some_and(ItemWire::holds_output);
            // Who waits in a call has nothing else to do than to look for what comes: if this thread looked too, each row would
            // wake it, to find that the row has been taken. But where others ask for rows of this worker only this thread hears
            // them while no call waits.
            let is_asked = state.own.iter().any(|&(_, asked)| asked);
            let leaves = !held && !is_asked && helped.is_some_and(|helped| helped.elapsed() < LEFT_TO_CALLS);
            if leaves != is_left {
                // A call that stops helping meanwhile has said so, and it stays said. One that did so just before the first
                // `true` waits for a look of this thread, a millisecond at most.
                self.left_to_calls.store(leaves, Ordering::Release);
            }
            is_left = leaves;
            drop(state);
            if !stands {
                continue;
            }
            if is_left {
                rung = self.sleep_beside_calls();
                continue;
            }
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, held);
            let mut fds = [PollFd::new(socket, flags), PollFd::new(&self.wakeup, PollFlags::IN)];
            let _ = poll(&mut fds, Some(look_every(self.setup.lease)));
            if !fds[1].revents().is_empty() {
                self.wakeup.clear();
            }
        }
        heard
    }

    /// Sleeps while calls look at what comes; whether it was rung for.
    fn sleep_beside_calls(&self) -> bool {
        let mut fds = [PollFd::new(&self.wakeup, PollFlags::IN)];
        let _ = poll(&mut fds, Some(LEFT_TO_CALLS));
        let rung = !fds[0].revents().is_empty();
        if rung {
            self.wakeup.clear();
        }
        rung
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::relay_to_nobody;
    use crate::wire::redial::PAUSE;
    use std::time::Instant;

    /// What was rung for while there was no connection stayed unread, and each pause that followed was over at once: the thread
    /// connected again as fast as it could.
    #[test]
    fn rows_that_are_set_while_a_server_is_away_cut_no_pause_between_attempts_short() {
        let (relay, away) = relay_to_nobody();
        let mut came = Vec::new();
        while came.len() < 10 {
            drop(away.accept().unwrap());
            came.push(Instant::now());
            relay.kick();
        }
        assert!(came[9] - came[0] >= 8 * PAUSE, "{:?} between ten attempts", came[9] - came[0]);
    }
}
