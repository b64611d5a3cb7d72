//! What workers ask, and their answers.

use super::{Answered, Control, MAX_HELLO_BYTES, REQUESTS, REQUESTS_WITHIN, TICKET_ENTRIES, Ticket, plain};
use crate::limits;
use crate::server::client::{Channel, Client, Received, Unsent};
use crate::server::fair_share::Place;
use crate::server::shard::Command;
use penstock_fabric::layout::flags;
use penstock_proto::account::{Exhausted, Resource};
use penstock_proto::error::{Loss, Refusal};
use penstock_proto::first::{Kept, Say, Told};
use penstock_proto::knot::{Goal, Knot};
use penstock_proto::layer::Nanos;
use penstock_proto::message::{Answer, Ask, Reply, Request, decode, encode};
use penstock_proto::{Rank, TensorId};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::Cell;
use std::time::Instant;

/// What a request counts for in the job's pace.
pub(super) const A_REQUEST: f64 = 1.0;
/// What a question to the shards counts for: it wakes this thread twice, and a shard, each time at the cost of somebody's core.
const A_QUESTION: f64 = 20.0;
/// Bytes of a request that this thread goes over in the time that a small one takes: of a table's rows more is made when all of
/// them have come, up to twelve bytes of memory for each.
const BYTES_A_REQUEST: f64 = 2048.0;
/// Waits of one worker for another that are gone over in the time that a request takes.
const WAITS_A_REQUEST: f64 = 1000.0;

/// Bytes that are kept of something that worker 0 does for all, or of one that waits for it, beside its texts.
const FIRST_BYTES: usize = 512;

/// Whether it only asks how far the others are, as whoever waits for them does again and again.
fn is_question(ask: &Ask) -> bool {
    matches!(ask, Ask::Clocks | Ask::Missing { .. } | Ask::Followed { .. } | Ask::Waits { .. })
}

/// What it counts for beyond a request.
fn more(ask: &Ask) -> f64 {
    match ask {
        Ask::Clocks | Ask::Missing { .. } | Ask::Followed { .. } => A_QUESTION - A_REQUEST,
        _ => 0.0,
    }
}

impl Control {
    /// How many requests of a client are taken at once. Beside another job so few that all clients together owe little for them:
    /// whatever some of them ask, each is heard in each turn, and the next turn is soon.
    fn most_of_each(&self) -> usize {
        if !self.is_beside_another() {
            return REQUESTS;
        }
        let questions = (self.pace.left() - self.spent) / A_QUESTION / self.heard.max(1) as f64;
        (questions as usize).clamp(1, REQUESTS)
    }

    /// Takes what a client asks; of one that asks without end only some, so that the others, and the end of the job,
    /// get their turn.
    pub(super) fn serve(&mut self, token: u64) {
        if self.unfinished.contains(&token) {
            return; // it was heard in this turn, and has more to say: in the next
        }
        let since = Instant::now();
        for _ in 0..self.most_of_each() {
            // However long each of them takes, this shows that the thread lives.
            self.shards.flags.beat(flags::CONTROL);
            if since.elapsed() > REQUESTS_WITHIN {
                break;
            }
            let Some(client) = self.clients.get_mut(&token) else { return };
            let message = match client.channel.receive(&mut self.buffer) {
                Received::Message(message) => message,
                Received::Nothing => return self.watch(token),
                Received::End(loss) => return self.close(token, loss),
            };
            if self.examine(token, &message) {
                continue;
            }
            // Also where it makes no sense.
            self.spent += A_REQUEST + message.len() as f64 / BYTES_A_REQUEST;
            // A connection from another host has refused it by its length already.
            let is_stranger = self.clients.get(&token).is_some_and(Client::is_stranger);
            if is_stranger && message.len() > MAX_HELLO_BYTES {
                return self.close(token, Loss::Broke { what: "a hello that is too long".to_owned() });
            }
            match decode::<Request>(&message) {
                Err(error) => return self.close(token, Loss::Broke { what: error.to_string() }),
                Ok(request) => self.take(token, request),
            }
        }
        self.unfinished.push(token);
    }

    fn take(&mut self, token: u64, request: Request) {
        let id = request.id;
        let Some(client) = self.clients.get(&token) else { return };
        let is_stranger = client.is_stranger();
        if !is_stranger {
            self.spent += more(&request.body);
        }
        if let (Some(peer), Ask::Heard) = (client.parting, &request.body) {
            self.partings.remove(&peer);
            // It does not come again, and is not waited for if it does.
            self.departed.remove(&peer);
            self.drop_client(token);
            return;
        }
        let Some(peer) = client.peer else {
            if let Some(answer) = self.ask_stranger(token, request) {
                self.answer_client(token, id, answer);
            }
            // Whoever belongs to the job says hello first, and is let in or comes again. Of a connection that goes on asking,
            // answers that it does not read would pile up, at nobody's charge.
            match self.clients.get_mut(&token) {
                Some(client) if is_stranger && client.is_stranger() => drop(self.drop_client(token)),
                Some(client) => client.channel.let_in(),
                None => {}
            }
            return;
        };
        let Some(rank) = self.rank_of(peer) else { return };
        if self.ended.is_some() {
            return; // it was told so, and nothing else is answered
        }
        if let Some(worker) = self.workers.get_mut(&rank) {
            worker.signs += 1;
            if !worker.answers.settle(request.settled, &request.open) {
                let what = format!("what it says of its requests before {} makes no sense", request.settled);
                return self.lose_rank(rank, Loss::Broke { what });
            }
            if let Some(bytes) = worker.answers.to(id).map(<[u8]>::to_vec) {
                return self.send(token, &bytes, &[]);
            }
            if worker.answers.is_settled(id) {
                return;
            }
        }
        if request.body == Ask::Beat {
            return self.answer_client(token, id, Ok((Answer::Alive, Vec::new())));
        }
        if let Ask::Uplink(measured) = request.body {
            self.trees.hear_rate(rank, measured, self.clock.now());
            return self.answer_client(token, id, Ok((Answer::Alive, Vec::new())));
        }
        // A job that waits for something does nothing: its neighbours are not to be slower for that.
        if !is_question(&request.body) {
            self.place.iter().for_each(Place::acted);
        }
        if let Some(answer) = self.ask(token, rank, request) {
            self.answer(rank, id, answer);
        }
    }

    pub(super) fn encode(id: u64, answer: Answered) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let (body, descriptors) = answer.unwrap_or_else(|refusal| (Answer::Refused(refusal), Vec::new()));
        match encode(&Reply { id, body }) {
            Ok(bytes) => Some((bytes, descriptors)),
            // The asker hears at least that, and does not wait in vain.
            Err(error) => {
                tracing::warn!(%error, "an answer cannot be sent");
                let (what, reason) = ("answer".to_owned(), error.to_string());
                let body = Answer::Refused(Refusal::System { what, reason });
                encode(&Reply { id, body }).ok().map(|bytes| (bytes, Vec::new()))
            }
        }
    }

    /// Answers a worker, now or when it has connected again.
    pub(in crate::server) fn answer(&mut self, rank: Rank, id: u64, answer: Answered) {
        let Some((bytes, descriptors)) = Self::encode(id, answer) else { return };
        let Some(worker) = self.workers.get_mut(&rank) else { return };
        if !worker.keep_answer(id, &bytes) {
            return self.lose_rank(rank, Loss::Broke { what: "it settles none of its answers".to_owned() });
        }
        if let Some(token) = worker.client {
            self.deliver(token, id, &bytes, &descriptors);
        }
    }

    fn answer_client(&mut self, token: u64, id: u64, answer: Answered) {
        if let Some((bytes, descriptors)) = Self::encode(id, answer) {
            self.deliver(token, id, &bytes, &descriptors);
        }
    }

    /// Sends an answer. Where the system passes no descriptors on, the worker is told so instead, and may ask again.
    fn deliver(&mut self, token: u64, id: u64, bytes: &[u8], descriptors: &[OwnedFd]) {
        let beside: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        match self.try_send(token, bytes, &beside) {
            Err(Unsent::System(errno)) if !beside.is_empty() => {
                tracing::warn!(%errno, "descriptors cannot be passed on");
                let refusal = limits::lacking("pass the descriptors of an answer")(errno);
                if let Some((bytes, _)) = Self::encode(id, Err(refusal)) {
                    self.send(token, &bytes, &[]);
                }
            }
            sent => self.conclude(token, sent),
        }
    }

    pub(super) fn send(&mut self, token: u64, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let sent = self.try_send(token, bytes, descriptors);
        self.conclude(token, sent);
    }

    pub(super) fn try_send(
        &mut self,
        token: u64,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Unsent> {
        self.clients.get_mut(&token).map_or(Ok(()), |client| client.channel.send(bytes, descriptors))
    }

    /// A worker that cannot be told its answer would wait for it in vain, so it counts as lost, whatever is to blame.
    pub(super) fn conclude(&mut self, token: u64, sent: Result<(), Unsent>) {
        match sent {
            Ok(()) => self.watch(token),
            Err(Unsent::Lost(loss)) => self.close(token, loss),
            Err(Unsent::System(errno)) => {
                let what =
                    format!("the server's system did not take an answer to it: {}", limits::explain(errno));
                self.close(token, Loss::Failed { what });
            }
        }
    }

    /// Waits for room to write where something waits for it.
    pub(super) fn watch(&self, token: u64) {
        if let Some(client) = self.clients.get(&token)
            && let Channel::Remote(records) = &client.channel
        {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, records.holds_output());
            let _ = epoll::modify(&self.epoll, &client.channel, epoll::EventData::new_u64(token), flags);
        }
    }

    /// Answers a worker's request, now or later.
    fn ask(&mut self, token: u64, rank: Rank, request: Request) -> Option<Answered> {
        match request.body {
            Ask::Hello { .. } => Some(Err(Refusal::Malformed { what: "it said hello twice".to_owned() })),
            Ask::Beat | Ask::Uplink(_) => plain(Answer::Alive),
            Ask::Heard => None,
            Ask::Declare { spec, decided } => self.declare(rank, request.id, spec, decided),
            Ask::Waits { wait, goal, alone } => {
                let knot = self.wait_in_circles(rank, wait, goal, alone);
                plain(Answer::Knot { knot })
            }
            Ask::Barrier => {
                self.stand(rank, request.id);
                None
            }
            Ask::First(say) => self.first(rank, request.id, say),
            Ask::Missing { tensor, version } => self.missing(rank, request.id, tensor, version),
            Ask::Withdraw { request } => plain(Answer::Missing { ranks: self.withdraw(rank, request) }),
            Ask::Clocks => {
                let ticket = match self.ticket(rank, request.id, 1) {
                    Ok(ticket) => ticket,
                    Err(refusal) => return Some(Err(refusal)),
                };
                self.shards.handles[0].send(Command::Clocks { ticket });
                None
            }
            Ask::Spent => plain(Answer::Spent { nanos: self.spent() }),
            Ask::Followed { tensor, shard } => self.followed(rank, request.id, tensor, shard),
            Ask::State { tensor } => Some(self.state(tensor)),
            Ask::Table(ask) => {
                self.table(rank, request.id, ask);
                None
            }
            Ask::Leave { how } => self.leave(token, rank, request.id, how),
        }
    }

    /// The time that the layers of all shards have taken.
    fn spent(&self) -> Nanos {
        self.shards.spent.iter().map(|spent| spent.nanos()).fold(Nanos::default(), |mut sum, one| {
            sum.iter_mut().zip(one).for_each(|(sum, one)| *sum += one);
            sum
        })
    }

    fn state(&mut self, tensor: TensorId) -> Answered {
        let entry = self.catalog.get(tensor)?;
        let fds = entry.state().map(|fd| fd.try_clone_to_owned()).transpose();
        let fds = fds.map_err(limits::lacking("pass the state"))?;
        Ok((Answer::State, fds.into_iter().collect()))
    }

    /// A worker no longer waits.
    pub(super) fn end_wait(&mut self, rank: Rank) {
        self.knots.end(rank);
        self.put_off.end(rank);
    }

    /// Notes what a worker still waits for; the circle that the wait is part of.
    fn wait_in_circles(&mut self, rank: Rank, wait: u64, goal: Option<Goal>, alone: bool) -> Option<Knot> {
        let Some(mut goal) = goal else {
            self.end_wait(rank);
            return None;
        };
        if let Goal::Ranks { ranks, .. } = &mut goal {
            ranks.truncate(self.config.workers as usize);
        }
        self.knots.waits(rank, wait, goal, alone);
        if !self.is_beside_another() || !self.has_spent_all() && !self.put_off.owes() {
            self.put_off.end(rank);
        } else if !self.put_off.lets_through(rank, self.clock.now()) {
            return None; // it asks again
        }
        let (members, missing) = (self.roster.members(), self.roster.missing_at_barrier());
        let stands = |rank| self.workers.get(&rank).is_some_and(|worker| worker.at_barrier.is_some());
        // These, and for each wait for a table, go over all workers.
        let all = self.config.workers as usize;
        let beside = Cell::new(2 * all);
        let for_a_table = || beside.set(beside.get() + all);
        let needs = |rank, goal: &Goal| match goal {
            Goal::Barrier { .. } if stands(rank) => missing.clone(),
            Goal::Barrier { .. } => Vec::new(),
            Goal::First { what } => self.firsts.needs(rank, what, &members),
            Goal::Table { name } => {
                for_a_table();
                self.tables.awaited_by(rank, name, &members.live)
            }
            Goal::Drop { id, .. } => {
                for_a_table();
                self.tables.users(*id, &members.live)
            }
            Goal::Ranks { ranks, .. } => ranks.clone(),
        };
        let knot = self.knots.find(rank, needs);
        if knot.is_none()
            && let Some(circle) = self.knots.doubt(rank, self.clock.now(), needs)
        {
            tracing::warn!(%circle, "workers wait for each other until another thread of theirs goes on, or a timeout is over");
        }
        let gone_over =
            self.knots.take_gone_over() + self.firsts.take_gone_over() + self.tables.take_gone_over();
        let cost = (gone_over + beside.get()) as f64 / WAITS_A_REQUEST;
        self.spent += cost;
        self.put_off.owe((self.spent - self.most_spent()).clamp(0.0, cost));
        knot
    }

    /// What a request made this thread go over beside the members of the job, which were counted for it.
    pub(super) fn pay_for(&mut self, gone_over: usize) {
        self.spent += (self.config.workers as usize + gone_over) as f64 / WAITS_A_REQUEST;
    }

    fn stand(&mut self, rank: Rank, request: u64) {
        let Some(worker) = self.workers.get_mut(&rank) else { return };
        if worker.at_barrier.replace(request) != Some(request) {
            self.roster.arrive(rank);
            self.open_barrier();
        }
    }

    /// What a worker says of something that worker 0 does for all.
    fn first(&mut self, rank: Rank, request: u64, say: Say) -> Option<Answered> {
        let (account, members) = (self.account.worker(rank), self.roster.members());
        let charge = |kept| {
            // A model may have any number of tensors that are loaded one by one.
            let (entries, bytes) = match kept {
                Kept::Waits(bytes) => (TICKET_ENTRIES, bytes),
                Kept::Deed(bytes) | Kept::Why(bytes) => (0, bytes),
            };
            let entries = account.charge(Resource::Entries, entries)?;
            Ok([entries, account.charge(Resource::Bytes, (FIRST_BYTES + 2 * bytes) as u64)?])
        };
        let said = self.firsts.say((rank, request), say, &members, charge);
        self.pay_for(self.firsts.take_gone_over());
        match said {
            Ok(told) => {
                self.tell(told);
                None
            }
            Err(why) => {
                let why: Exhausted = why;
                Some(Err(why.refuse("what worker 0 does for all")))
            }
        }
    }

    fn tell(&mut self, told: Vec<Told>) {
        for (rank, request, heard) in told {
            self.end_wait(rank);
            self.answer(rank, request, Ok((Answer::First(heard), Vec::new())));
        }
    }

    /// Takes back a worker that waits for others. Returns the workers that it waits for, if it was not answered meanwhile.
    fn withdraw(&mut self, rank: Rank, request: u64) -> Vec<Rank> {
        let stood =
            self.workers.get_mut(&rank).and_then(|worker| worker.at_barrier.take_if(|at| *at == request));
        let ranks = match stood {
            Some(_) => {
                let ranks = self.roster.missing_at_barrier();
                self.roster.withdraw(rank);
                ranks
            }
            None => {
                let withdrawn = self.firsts.withdraw(rank, request, &self.roster.members());
                self.pay_for(self.firsts.take_gone_over());
                match withdrawn {
                    Some(ranks) => ranks,
                    None => return Vec::new(),
                }
            }
        };
        self.end_wait(rank); // its wait was in vain
        // An answer to the one request that has none: repeated on another connection, it is not taken for a new one.
        self.answer(rank, request, Ok((Answer::Missing { ranks: ranks.clone() }, Vec::new())));
        ranks
    }

    /// A worker that has gone, and is not lost so far, waits for nothing: no other passes the barrier as if it stood there, nor
    /// is in a circle with it.
    pub(in crate::server) fn stand_aside(&mut self, rank: Rank) {
        self.end_wait(rank);
        self.roster.withdraw(rank);
        self.firsts.stand_aside(rank);
        if let Some(worker) = self.workers.get_mut(&rank) {
            worker.at_barrier = None;
        }
    }

    /// The others go on without a worker, if they waited for no other.
    pub(super) fn wait_without(&mut self, rank: Rank) {
        self.open_barrier();
        let told = self.firsts.without(rank, &self.roster.members());
        self.tell(told);
    }

    fn open_barrier(&mut self) {
        let Some(ranks) = self.roster.pass_barrier() else { return };
        let left: Vec<Rank> = self.roster.members().left.into_iter().collect();
        for &rank in &ranks {
            self.end_wait(rank);
            if let Some(request) = self.workers.get_mut(&rank).and_then(|worker| worker.at_barrier.take()) {
                let (ranks, left) = (ranks.clone(), left.clone());
                self.answer(rank, request, Ok((Answer::BarrierPassed { ranks, left }, Vec::new())));
            }
        }
    }

    fn ticket(&mut self, rank: Rank, request: u64, open: usize) -> Result<u64, Refusal> {
        let charge = self.account.worker(rank).charge(Resource::Entries, TICKET_ENTRIES);
        let entries = charge.map_err(|why| why.refuse("another question to the shards"))?;
        self.next_ticket += 1;
        let ticket = Ticket { rank, request, open, ranks: Vec::new(), _entries: entries };
        self.tickets.insert(self.next_ticket, ticket);
        Ok(self.next_ticket)
    }

    fn missing(&mut self, rank: Rank, request: u64, id: TensorId, version: u64) -> Option<Answered> {
        if let Err(refusal) = self.catalog.get(id) {
            return Some(Err(refusal));
        }
        let ticket = match self.ticket(rank, request, self.shards.handles.len()) {
            Ok(ticket) => ticket,
            Err(refusal) => return Some(Err(refusal)),
        };
        for shard in &self.shards.handles {
            shard.send(Command::Missing { ticket, id, version });
        }
        None
    }

    fn followed(&mut self, rank: Rank, request: u64, id: TensorId, shard: u32) -> Option<Answered> {
        if let Err(refusal) = self.catalog.get(id) {
            return Some(Err(refusal));
        }
        if self.shards.handles.len() <= shard as usize {
            let what = format!("it asked shard {shard} of {}", self.shards.handles.len());
            return Some(Err(Refusal::Malformed { what }));
        }
        let ticket = match self.ticket(rank, request, 1) {
            Ok(ticket) => ticket,
            Err(refusal) => return Some(Err(refusal)),
        };
        self.shards.handles[shard as usize].send(Command::Followed { ticket, id });
        None
    }

    pub(super) fn collect(&mut self, number: u64, ranks: Vec<Rank>) {
        let Some(ticket) = self.tickets.get_mut(&number) else { return };
        ticket.ranks.extend(ranks);
        ticket.open -= 1;
        if ticket.open == 0 {
            let Ticket { rank, request, mut ranks, .. } =
                self.tickets.remove(&number).expect("it was just there");
            ranks.sort_unstable();
            ranks.dedup();
            self.answer(rank, request, Ok((Answer::Missing { ranks }, Vec::new())));
        }
    }
}
