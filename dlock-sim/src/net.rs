//! What is between the processes and the store: connections that keep their order and lose everything else.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::exec::now;
use crate::lease::{Answer, Changes, Command};
use crate::session::From;
use crate::world::{Event, Trouble, Wanted, World, tell, world};

/// One connection of a process. What is sent on it arrives in its order, and so do the answers.
#[derive(Default)]
pub(crate) struct Connection {
    /// Counts the connections that were opened in its place.
    pub(crate) generation: u64,
    arrived: u64,
    answered: u64,
}

/// A request on its way.
pub(crate) struct Message {
    request: u64,
    process: usize,
    connection: usize,
    generation: u64,
    from: Option<From>,
    command: Command,
    answered: bool,
}

/// Which connection a request went over: place, generation, and number of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) connection: usize,
    pub(crate) generation: u64,
    pub(crate) request: u64,
}

impl World {
    /// Sends a request and decides its fate.
    pub(crate) fn send(&mut self, process: usize, from: Option<From>, command: Command) -> Route {
        self.request += 1;
        let request = self.request;
        let connection = self.connection_for(&command);
        let generation = self.processes[process].connections[connection].generation;
        let from = from.map(|from| From { generation, ..from });
        let route = Route { connection, generation, request };
        self.requests.insert(request, Wanted::default());
        tell!(self, Some(process), "r{request} {}", self.command_of(&command));
        if !self.processes[process].alive {
            return route;
        }
        match &command {
            Command::Attempt(all) => {
                self.asks_for(process, all);
                self.brings_baton(process, all);
                self.attempted(all[0].claim);
            }
            Command::Renew(one) => self.renews(one.claim),
            Command::Withdraw(one) | Command::Leave(one, _) => self.withdraws(process, one.claim),
            Command::Inspect(_) | Command::Downgrade(_) => {}
        }
        let ping = matches!(command, Command::Inspect(usize::MAX));
        if !ping && self.chance(self.plan.rate_panic) {
            tell!(self, Some(process), "r{request} panics in the backend");
            self.reply(request, Err(Trouble::Panic), 0);
            return route;
        }
        if self.chance(self.plan.rate_refused) {
            tell!(self, Some(process), "r{request} is refused");
            let delay = self.delay();
            self.reply(request, Err(Trouble::Refused), delay);
            return route;
        }
        let cut = self.processes[process].cut_until > now();
        if cut || self.chance(self.plan.rate_lost) {
            tell!(self, Some(process), "r{request} is lost on its way");
            self.lose_connection(route, process);
            return route;
        }
        let answered = !self.chance(self.plan.rate_unanswered);
        let late = self.chance(self.plan.rate_late);
        let most = if late { self.plan.late } else { self.plan.delay };
        let delay = self.rng.u64(0..=most);
        let twice = match &command {
            // Right behind the first on its connection, so that nothing of this claim comes between.
            Command::Attempt(_)
            | Command::Withdraw(_)
            | Command::Leave(..)
            | Command::Renew(_)
            | Command::Downgrade(_) => self.chance(self.plan.rate_twice),
            Command::Inspect(_) => false,
        };
        if twice {
            let command = command.clone();
            self.arrive(
                Message { request: 0, process, connection, generation, from, command, answered: false },
                delay,
            );
        }
        self.arrive(Message { request, process, connection, generation, from, command, answered }, delay);
        if self.chance(self.plan.rate_reset) {
            tell!(self, Some(process), "r{request} meets a reset");
            self.reply(request, Err(Trouble::Reset), delay);
            self.lose_connection(route, process);
        } else if !answered {
            self.lose_connection(route, process);
        }
        route
    }

    fn arrive(&mut self, message: Message, delay: u64) {
        let connection = &mut self.processes[message.process].connections[message.connection];
        connection.arrived = connection.arrived.max(now() + delay * 1_000_000);
        let at = connection.arrived;
        self.tasks.at(at, Event::Arrive(message));
    }

    fn delay(&mut self) -> u64 {
        self.rng.u64(0..=self.plan.delay)
    }

    fn reply(&mut self, request: u64, answer: Result<Answer, Trouble>, delay: u64) {
        self.tasks.after(delay, Event::Reply(request, answer));
    }

    /// What is sent from now on goes over another connection, and may overtake what went over this one.
    fn lose_connection(&mut self, route: Route, process: usize) {
        let connection = &mut self.processes[process].connections[route.connection];
        *connection = Connection { generation: connection.generation + 1, ..Connection::default() };
    }

    /// A request reaches the store. What has to be looked at outside of the world is returned.
    pub(crate) fn arrived(&mut self, message: Message) -> Changes {
        let Message { request, process, connection, generation, from, command, answered } = message;
        let node = command.key().and_then(|key| self.node(key));
        if !self.store.up || node.is_some_and(|node| self.down.contains(&node)) {
            tell!(self, None, "r{request} finds the store down");
            if self.rng.bool() {
                self.reply(request, Err(Trouble::Reset), 0);
            }
            return Changes::default();
        }
        // One whose sender is gone may be dropped with its connection.
        if request > 0 && !self.requests.contains_key(&request) && !self.plan.healthy && self.rng.bool() {
            tell!(self, None, "r{request} is dropped with its sender");
            return Changes::default();
        }
        let time = self.clock_for(&command);
        self.judge_before(&command);
        let (answer, changes) = match self.store.carry_out(from, &command, time) {
            Ok((Some(answer), changes)) => (answer, changes),
            Ok((None, _)) => {
                tell!(self, None, "r{request} comes from where its session is no more");
                return Changes::default();
            }
            Err(difference) => {
                self.violate(format!("r{request}: {difference}"));
                return Changes::default();
            }
        };
        tell!(self, None, "r{request} arrives: {answer:?}");
        self.judge_take_over(&command, &answer, time);
        if let (Command::Attempt(all), Answer::Busy(..) | Answer::Left(..)) = (&command, &answer) {
            self.found_part(request, all);
        }
        // An administrator takes one of several locks whose holder does not know yet that it has them.
        if let (Command::Attempt(all), Answer::Granted(_)) = (&command, &answer)
            && all.len() > 1
            && self.plan.straggling
            && !answered
            && let Ok(key) = self.keys[all[0].key][1..].parse()
        {
            self.tasks.after(1, Event::Force(key));
        }
        if let Command::Leave(..) = &command
            && self.chance(self.plan.rate_cut)
        {
            let millis = self.rng.u64(1..=self.plan.lease * 4);
            self.tasks.after(0, Event::Cut(process, millis));
        }
        self.note(&changes);
        self.notify(&changes);
        if answered && request > 0 {
            let most = if self.chance(self.plan.rate_late_answer) { self.plan.late } else { self.plan.delay };
            let delay = self.rng.u64(0..=most);
            let cut = self.processes[process].cut_until > now();
            let same = &mut self.processes[process].connections[connection];
            if same.generation == generation && !cut {
                same.answered = same.answered.max(now() + delay * 1_000_000);
                let at = same.answered;
                self.tasks.at(at, Event::Reply(request, Ok(answer)));
            }
        }
        changes
    }

    pub(crate) fn notify(&mut self, changes: &Changes) {
        for &(key, process) in &changes.tell {
            if self.chance(self.plan.rate_untold) || !self.plan.notified {
                continue;
            }
            let delay = self.delay();
            self.tasks.after(delay, Event::Told(process, key));
        }
    }

    pub(crate) fn replied(&mut self, request: u64, answer: Result<Answer, Trouble>) {
        if let Some(wanted) = self.requests.get_mut(&request)
            && wanted.answer.is_none()
        {
            wanted.answer = Some(answer);
            if let Some(waker) = wanted.waker.take() {
                waker.wake();
            }
        }
    }

    pub(crate) fn told(&mut self, process: usize, key: usize) {
        let p = &mut self.processes[process];
        *p.told.entry(key).or_default() += 1;
        for (_, waker) in p.watchers.extract_if(.., |(of, _)| *of == key) {
            waker.wake();
        }
        tell!(self, Some(process), "is told of a change of {}", self.keys[key]);
    }
}

/// The answer to a request, for the one who sent it. Nobody waits for it any more once this is dropped.
pub(crate) struct Request(u64);

impl Request {
    pub(crate) fn new(route: Route) -> Self {
        Self(route.request)
    }
}

impl Future for Request {
    type Output = Result<Answer, Trouble>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = world(|w| {
            let wanted = w.requests.entry(self.0).or_default();
            wanted.waker = Some(cx.waker().clone());
            let answer = wanted.answer.take();
            if let Some(answer) = &answer {
                w.answered(self.0, answer.is_ok());
            }
            answer
        });
        match answer {
            Some(Err(Trouble::Panic)) => crate::exec::throw(),
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        world(|w| w.requests.remove(&self.0));
    }
}
