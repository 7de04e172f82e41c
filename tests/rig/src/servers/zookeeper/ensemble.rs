//! Three servers of which one leads.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::proxy::{Arrivals, Proxy};

use super::{Administrator, EARLY_ANSWER, Ports, START, ServerError, ZooKeeperOptions, ZooKeeperServer};

const MEMBERS: u8 = 3;

/// Three servers that go on when one of them fails.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    servers: Vec<ZooKeeperServer>,
    links: Vec<Link>,
}

/// What one member reaches another one by.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    /// Before the port that the other one has as a leader.
    lead: Proxy,
    /// Before the port that it has for elections.
    elect: Proxy,
}

impl Link {
    fn start(from: usize, to: usize, [lead, elect]: [u16; 2]) -> Result<Self, ServerError> {
        let proxy = |port| {
            let started = Proxy::start((Ipv4Addr::LOCALHOST, port).into());
            started.map_err(|error| ServerError::because("a proxy between members", &error))
        };
        let link = Self { from, to, lead: proxy(lead)?, elect: proxy(elect)? };
        // A member that is refused tries again soon; one that is connected and then reset may give up on a leader that
        // is not ready yet, and both are stuck until `initLimit`.
        for proxy in [&link.lead, &link.elect] {
            proxy.set_arrivals(Arrivals::Await);
        }
        if from < to {
            // Of two members the one with the higher number connects to the other. One with a lower number that tries
            // would be connected to at its own port, past all proxies.
            link.elect.set_arrivals(Arrivals::Reset);
        }
        Ok(link)
    }
}

impl ZooKeeperEnsemble {
    /// An ensemble that has elected its leader, and whose members all serve.
    ///
    /// # Errors
    ///
    /// When ZooKeeper is missing or does not start.
    pub fn start() -> Result<Self, ServerError> {
        Self::start_with(&ZooKeeperOptions::default())
    }

    /// With these settings of every member.
    ///
    /// # Errors
    ///
    /// When ZooKeeper is missing or does not start.
    pub fn start_with(options: &ZooKeeperOptions) -> Result<Self, ServerError> {
        Self::start_over(options, false, 0)
    }

    /// With these settings, and with a fourth server that observes: it serves, and has no vote.
    ///
    /// # Errors
    ///
    /// When ZooKeeper is missing or does not start.
    pub fn start_observed(options: &ZooKeeperOptions) -> Result<Self, ServerError> {
        Self::start_over(options, false, 1)
    }

    /// With proxies between the members, so that [`strand_leader`](Self::strand_leader) works.
    ///
    /// # Errors
    ///
    /// When ZooKeeper is missing or does not start.
    pub fn start_over_proxies(options: &ZooKeeperOptions) -> Result<Self, ServerError> {
        Self::start_over(options, true, 0)
    }

    fn start_over(options: &ZooKeeperOptions, proxies: bool, observers: u8) -> Result<Self, ServerError> {
        let all = MEMBERS + observers;
        let ports: Vec<[u16; 2]> = (1..=all).map(|_| [Ports::free(), Ports::free()]).collect();
        let mut links = Vec::new();
        let members = 0..usize::from(all);
        for (from, to) in members.clone().flat_map(|from| members.clone().map(move |to| (from, to))) {
            if proxies && from != to {
                links.push(Link::start(from, to, ports[to])?);
            }
        }
        // In ticks: generous, since a loaded machine is no failure, and short enough for a second election.
        let patience = (START.as_millis() / 3).div_ceil(options.tick.as_millis()).to_string();
        let options = options.clone().setting("initLimit", &patience).setting("syncLimit", "50");
        let mut servers = Vec::new();
        for (id, from) in (1..=all).zip(members) {
            let mut options = options.clone().member(id);
            if id > MEMBERS {
                options = options.setting("peerType", "observer");
            }
            for (to, own) in ports.iter().enumerate() {
                let link = links.iter().find(|link| (link.from, link.to) == (from, to));
                let [lead, elect] =
                    link.map_or(*own, |link| [link.lead.address().port(), link.elect.address().port()]);
                let role = if to < usize::from(MEMBERS) { "" } else { ":observer" };
                options = options
                    .setting(&format!("server.{}", to + 1), &format!("127.0.0.1:{lead}:{elect}{role}"));
            }
            servers.push(ZooKeeperServer::start_at_once(options)?);
        }
        for server in &mut servers {
            server.wait_until_ready(START)?;
        }
        Ok(Self { servers, links })
    }

    /// Parts the leader from the others, who learn of it at once and elect another one, while it believes in its
    /// followers for fifty ticks and goes on answering what needs no majority. Returns which one it was.
    ///
    /// # Panics
    ///
    /// When nobody leads, or the ensemble was not started with [`start_over_proxies`](Self::start_over_proxies).
    pub fn strand_leader(&self) -> usize {
        assert!(!self.links.is_empty(), "started over proxies");
        let leader = self.leader().expect("a leader");
        for link in self.links.iter().filter(|link| link.from == leader || link.to == leader) {
            for proxy in [&link.lead, &link.elect] {
                proxy.set_arrivals(Arrivals::Reset);
            }
            // Also what it tells the others of itself: as long as they hear that it leads, some follow it again.
            link.elect.cut();
        }
        for link in self.links.iter().filter(|link| link.to == leader) {
            link.lead.strand();
        }
        leader
    }

    /// The members.
    #[must_use]
    pub fn servers(&self) -> &[ZooKeeperServer] {
        &self.servers
    }

    /// A member.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn server_mut(&mut self, index: usize) -> &mut ZooKeeperServer {
        &mut self.servers[index]
    }

    /// Where the members listen.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address()).collect()
    }

    /// `zk://` of all members.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.addresses().iter().map(SocketAddr::to_string).collect();
        format!("zk://{}", addresses.join(","))
    }

    /// The administrator of a member that serves.
    ///
    /// # Panics
    ///
    /// When no member serves.
    #[must_use]
    #[track_caller]
    pub fn admin(&self) -> Administrator {
        let mut serving = (0..self.servers.len()).filter(|&index| self.mode(index).is_some());
        Administrator::of(self.servers[serving.next().expect("a member that serves")].address())
    }

    /// Who leads at the moment, if anybody does.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        (0..self.servers.len()).find(|&index| self.leads(index))
    }

    /// Whether this member takes itself for the leader.
    #[must_use]
    pub fn leads(&self, index: usize) -> bool {
        self.mode(index).as_deref() == Some("leader")
    }

    /// What this member is at the moment, such as `follower`; nothing while it does not serve.
    fn mode(&self, index: usize) -> Option<String> {
        let server = &self.servers[index];
        if !server.is_running() {
            return None;
        }
        let state = Administrator::of(server.address()).word_within(EARLY_ANSWER, "srvr").ok()?;
        Some(state.split_once("Mode: ")?.1.lines().next()?.to_owned())
    }

    /// Waits until one of those that run leads.
    ///
    /// # Errors
    ///
    /// When that takes longer than a minute.
    pub fn wait_for_leader(&self) -> Result<usize, ServerError> {
        let end = Instant::now() + START;
        loop {
            if let Some(leader) = self.leader() {
                return Ok(leader);
            }
            if Instant::now() > end {
                let said: Vec<_> = self.servers.iter().map(|server| server.output()).collect();
                return Err(ServerError::new(format!("nobody leads after {START:?}\n{}", said.join("\n"))));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
