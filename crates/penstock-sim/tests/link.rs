//! To the frames' reader and writer an end of a simulated wire is a link, and keeps what links promise.

#[path = "../../penstock-fabric/tests/link/suite.rs"]
mod suite;

use penstock_fabric::net::link::{Got, Interest, Link, Segment};
use penstock_sim::rng::Rng;
use penstock_sim::transport::{Break, End, Way, Wire};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSliceMut};
use std::rc::Rc;
use std::time::Duration;

/// How long a frame is under way.
const DELAY: u64 = 10;
/// Frames that may be under way at once.
const WINDOW: usize = 5;

/// A wire between two ends, and its time.
#[derive(Clone)]
struct Between {
    wire: Rc<RefCell<Wire>>,
    now: Rc<Cell<u64>>,
    /// Of reads that bring what they like: of one end, so that the other brings all that there is.
    rng: Rc<RefCell<Rng>>,
}

/// One end, for as long as the wire lives.
struct Lasting {
    between: Between,
    out: Way,
}

impl Lasting {
    fn at_once<T>(&self, run: impl FnOnce(&mut End<'_>) -> T) -> T {
        let Between { wire, now, rng } = &self.between;
        let (mut wire, mut rng) = (wire.borrow_mut(), rng.borrow_mut());
        // Time passes with every call, also for those that do not wait.
        now.set(now.get() + 1);
        let now = now.get();
        let ahead = Some((rng.within(1..=200) as usize, now + DELAY / 2));
        let reads = (self.out == Way::Up).then_some(&mut *rng);
        run(&mut End {
            due: now + DELAY,
            ahead,
            window: WINDOW,
            takes: 30_000,
            reads,
            ..End::new(&mut wire, self.out, now)
        })
    }
}

impl Link for Lasting {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
        self.at_once(|end| end.read(parts))
    }

    fn short_is_all(&self) -> bool {
        self.at_once(|end| end.short_is_all())
    }

    fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
        self.at_once(|end| end.write(parts))
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.at_once(|end| end.flush())
    }

    fn holds_output(&self) -> bool {
        self.at_once(|end| end.holds_output())
    }

    fn resize(&self, bytes: usize) -> io::Result<()> {
        self.at_once(|end| end.resize(bytes))
    }
}

impl suite::Ends for [Lasting; 2] {
    type Link = Lasting;

    fn connect() -> Self {
        let rng = Rc::new(RefCell::new(Rng::new(1)));
        let between = Between { wire: Rc::default(), now: Rc::default(), rng };
        between.wire.borrow_mut().connect();
        [Way::Up, Way::Down].map(|out| Lasting { between: between.clone(), out })
    }

    fn end(&mut self, at: usize) -> &mut Lasting {
        &mut self[at]
    }

    fn wait(&mut self, at: usize, interest: Interest, _: Duration) -> bool {
        let [Lasting { between: Between { wire, now, .. }, .. }, _] = self;
        now.set(now.get() + 100 * DELAY);
        let (out, into) = if at == 0 { (Way::Up, Way::Down) } else { (Way::Down, Way::Up) };
        let wire = wire.borrow();
        (interest.read && wire.has_news(into, now.get())) || (interest.write && wire.has_room(out, WINDOW))
    }

    fn close(&mut self, at: usize) {
        let mut wire = self[at].between.wire.borrow_mut();
        if at == 0 { wire.close_at_worker() } else { wire.close_at_shard() }
    }

    fn cut(&mut self, at: usize) {
        self[at].between.wire.borrow_mut().shatter(Break::Cut, 0, &mut Rng::new(1));
    }
}

suite::conformance!(simulated, [crate::Lasting; 2]);
