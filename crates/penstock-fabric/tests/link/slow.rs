//! A link that takes and brings a few bytes at a time, and says that it would block in between: what another implementation
//! may do at worst.

use crate::suite::Ends;
use penstock_fabric::net::link::{Got, Interest, Link, Segment};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut};
use std::rc::Rc;
use std::time::Duration;

/// Bytes at a time, one call after the other. So many calls that no loop of fewer always meets the same.
const BITES: [usize; 7] = [0, 3, 0, 7, 1, 0, 5];
/// Bytes that an end holds of what was written.
const HELD: usize = 20;

/// What goes one way.
#[derive(Debug)]
struct Way {
    under_way: RefCell<VecDeque<u8>>,
    room: Cell<usize>,
    closed: Cell<bool>,
}

impl Default for Way {
    fn default() -> Self {
        Self { under_way: RefCell::default(), room: Cell::new(1 << 15), closed: Cell::new(false) }
    }
}

impl Way {
    fn free(&self) -> usize {
        self.room.get().saturating_sub(self.under_way.borrow().len())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Stands,
    /// It is cut, and neither end was told.
    Cut,
    Over,
}

/// One end.
#[derive(Debug)]
pub(crate) struct Slow {
    out: Rc<Way>,
    into: Rc<Way>,
    held: VecDeque<u8>,
    calls: usize,
    state: State,
}

impl Slow {
    /// Both ends.
    pub(crate) fn pair() -> [Self; 2] {
        let (one, other) = (Rc::new(Way::default()), Rc::new(Way::default()));
        let end = |out: &Rc<Way>, into: &Rc<Way>| Self {
            out: Rc::clone(out),
            into: Rc::clone(into),
            held: VecDeque::new(),
            calls: 0,
            state: State::Stands,
        };
        [end(&one, &other), end(&other, &one)]
    }

    /// How many bytes go at this call.
    fn bite(&mut self) -> usize {
        self.calls += 1;
        BITES[self.calls % BITES.len()]
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.out.closed.set(true);
    }
}

impl Link for Slow {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
        match self.state {
            State::Stands => {}
            State::Cut => {
                self.state = State::Over;
                return Err(ErrorKind::ConnectionReset.into());
            }
            State::Over => return Ok(Got::End),
        }
        let most = self.bite();
        let mut under_way = self.into.under_way.borrow_mut();
        if under_way.is_empty() && self.into.closed.get() {
            return Ok(Got::End);
        }
        let room = parts.iter_mut().flat_map(|part| part.iter_mut()).take(most.min(under_way.len()));
        let came = room.map(|byte| *byte = under_way.pop_front().expect("so many are there")).count();
        Ok(if came == 0 { Got::Nothing } else { Got::Bytes(came) })
    }

    fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
        self.flush()?;
        let most = self.bite().min(HELD.saturating_sub(self.held.len()));
        let bytes = Segment::copied(parts, most);
        self.held.extend(&bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<bool> {
        if self.state != State::Stands {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let most = self.bite().min(self.held.len()).min(self.out.free());
        self.out.under_way.borrow_mut().extend(self.held.drain(..most));
        Ok(self.held.is_empty())
    }

    fn holds_output(&self) -> bool {
        !self.held.is_empty()
    }

    fn resize(&self, bytes: usize) -> io::Result<()> {
        self.out.room.set(bytes);
        self.into.room.set(bytes);
        Ok(())
    }
}

impl Ends for [Option<Slow>; 2] {
    type Link = Slow;

    fn connect() -> Self {
        Slow::pair().map(Some)
    }

    fn end(&mut self, at: usize) -> &mut Slow {
        self[at].as_mut().expect("it was not closed")
    }

    fn wait(&mut self, at: usize, interest: Interest, _: Duration) -> bool {
        let link = self.end(at);
        let comes = !link.into.under_way.borrow().is_empty() || link.into.closed.get();
        let goes = link.held.len() < HELD || link.out.free() > 0;
        (interest.read && (comes || link.state != State::Stands)) || (interest.write && goes)
    }

    fn close(&mut self, at: usize) {
        self[at] = None;
    }

    fn cut(&mut self, at: usize) {
        self.end(at).state = State::Cut;
    }
}
