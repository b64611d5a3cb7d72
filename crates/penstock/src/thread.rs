//! Threads that take commands from other threads of their process and sleep on descriptors: commands stand in a queue, and a
//! descriptor of the thread's own wakes it.

use crate::wait::until_readable;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Starts a thread.
pub(crate) fn spawn(
    name: impl Into<String>,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(work)
}

/// A descriptor that counts how often it was rung.
pub(crate) fn bell() -> io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Wakes the thread that sleeps on a bell.
pub(crate) fn ring(bell: &impl AsFd) {
    // It fails only when the count is full, and then the listener has been woken already.
    let _ = io::write(bell, &1u64.to_le_bytes());
}

/// A bell that only this process has: what one of its threads is woken with.
#[derive(Debug)]
pub(crate) struct Wakeup(OwnedFd);

impl Wakeup {
    pub(crate) fn new() -> io::Result<Self> {
        bell().map(Self)
    }

    pub(crate) fn ring(&self) {
        ring(&self.0);
    }

    /// Makes it as if it had never been rung.
    pub(crate) fn clear(&self) {
        let _ = io::read(&self.0, &mut [0; 8]);
    }

    /// Sleeps until it is rung, at most for `longest`; whether it is.
    pub(crate) fn sleep(&self, longest: Duration) -> bool {
        until_readable(self, longest).unwrap_or(false)
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a thread is told.
pub(crate) trait Command: Send + 'static {
    /// To end.
    const STOP: Self;
}

/// The end of those that tell a thread what to do. When it is dropped the thread is told to end, and waited for if it was
/// started by this.
#[derive(Debug)]
pub(crate) struct Handle<C: Command> {
    teller: Teller<C>,
    thread: Option<JoinHandle<()>>,
}

/// Tells a thread what to do that others hold the handle of, as long as it runs.
#[derive(Debug)]
pub(crate) struct Teller<C> {
    commands: Sender<C>,
    /// Whether there are commands; set before any thread can act on what they bring.
    flag: Arc<AtomicBool>,
    wakeup: Arc<Wakeup>,
}

/// The thread's own end.
#[derive(Debug)]
pub(crate) struct Inbox<C> {
    commands: Receiver<C>,
    flag: Arc<AtomicBool>,
    wakeup: Arc<Wakeup>,
}

/// Both ends.
pub(crate) fn commanded<C: Command>() -> io::Result<(Handle<C>, Inbox<C>)> {
    let (sender, receiver) = channel();
    let (flag, wakeup) = (Arc::new(AtomicBool::new(false)), Arc::new(Wakeup::new()?));
    let inbox = Inbox { commands: receiver, flag: Arc::clone(&flag), wakeup: Arc::clone(&wakeup) };
    Ok((Handle { teller: Teller { commands: sender, flag, wakeup }, thread: None }, inbox))
}

impl<C> Teller<C> {
    /// Tells the thread, and wakes it. What one that has ended is told is dropped.
    pub(crate) fn send(&self, command: C) {
        self.leave(command);
        self.wakeup.ring();
    }

    /// Tells the thread what it need not wake up for.
    fn leave(&self, command: C) {
        let _ = self.commands.send(command);
        // Pairs with the acquire loads of the inbox: a thread that sees what was published after it sees the command too.
        self.flag.store(true, Ordering::Release);
    }

    /// Whether the thread has begun to take all that it was told so far.
    pub(crate) fn is_heard(&self) -> bool {
        !self.flag.load(Ordering::Acquire)
    }
}

impl<C: Command> Handle<C> {
    /// Starts the thread.
    pub(crate) fn start(
        &mut self,
        name: impl Into<String>,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        self.thread = Some(spawn(name, work)?);
        Ok(())
    }

    /// Tells the thread, and wakes it. One that has ended needs no commands.
    pub(crate) fn send(&self, command: C) {
        self.teller.send(command);
    }

    /// Tells the thread what it need not wake up for.
    pub(crate) fn leave(&self, command: C) {
        self.teller.leave(command);
    }

    /// Another end, for others that tell the thread something.
    pub(crate) fn teller(&self) -> Teller<C> {
        let Teller { commands, flag, wakeup } = &self.teller;
        Teller { commands: commands.clone(), flag: Arc::clone(flag), wakeup: Arc::clone(wakeup) }
    }

    /// For others to wake the thread with.
    pub(crate) fn bell(&self) -> std::io::Result<OwnedFd> {
        self.teller.wakeup.as_fd().try_clone_to_owned()
    }
}

impl<C: Command> Drop for Handle<C> {
    fn drop(&mut self) {
        self.send(C::STOP);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<C> Inbox<C> {
    /// What the thread sleeps on.
    pub(crate) fn wakeup(&self) -> &Wakeup {
        &self.wakeup
    }

    /// Whether there may be commands.
    pub(crate) fn is_open(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Whether there may be commands; then all are to be [taken](Self::next), for it says so once.
    pub(crate) fn open(&self) -> bool {
        // A swap, which no look into the queue can overtake: a command that it misses has set the flag again.
        self.is_open() && self.flag.swap(false, Ordering::AcqRel)
    }

    /// The next command, if there is one.
    pub(crate) fn next(&self) -> Option<C> {
        self.commands.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Told {
        Number(u32),
        Stop,
    }

    impl Command for Told {
        const STOP: Self = Self::Stop;
    }

    #[test]
    fn what_a_thread_need_not_wake_up_for_is_taken_with_what_it_is_woken_for() {
        let (handle, inbox) = commanded().unwrap();
        assert!(!inbox.open() && !inbox.wakeup().sleep(Duration::ZERO));
        handle.leave(Told::Number(1));
        assert!(inbox.is_open() && !inbox.wakeup().sleep(Duration::ZERO));
        handle.send(Told::Number(2));
        assert!(inbox.wakeup().sleep(Duration::ZERO) && inbox.open() && !inbox.open());
        assert_eq!(
            (inbox.next(), inbox.next(), inbox.next()),
            (Some(Told::Number(1)), Some(Told::Number(2)), None)
        );
        inbox.wakeup().clear();
        assert!(!inbox.wakeup().sleep(Duration::ZERO));
    }

    #[test]
    fn a_thread_is_told_to_end_and_waited_for_when_nobody_can_tell_it_anything_any_more() {
        let (mut handle, inbox) = commanded().unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let says = Arc::clone(&ended);
        handle
            .start("told", move || {
                while !std::iter::from_fn(|| inbox.next()).any(|told| told == Told::Stop) {
                    inbox.wakeup().sleep(Duration::from_secs(60));
                    inbox.wakeup().clear();
                }
                says.store(true, Ordering::Release);
            })
            .unwrap();
        handle.leave(Told::Number(1));
        drop(handle);
        assert!(ended.load(Ordering::Acquire));
    }
}
