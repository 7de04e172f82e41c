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
    /// Before the ports that each member has for the others: as a leader, and for elections.
    links: Vec<[Proxy; 2]>,
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
        Self::start_over(options, false)
    }

    /// With proxies between the members, so that [`strand_leader`](Self::strand_leader) works.
    ///
    /// # Errors
    ///
    /// When ZooKeeper is missing or does not start.
    pub fn start_over_proxies(options: &ZooKeeperOptions) -> Result<Self, ServerError> {
        Self::start_over(options, true)
    }

    fn start_over(options: &ZooKeeperOptions, proxies: bool) -> Result<Self, ServerError> {
        let ports: Vec<[u16; 2]> = (1..=MEMBERS).map(|_| [Ports::free(), Ports::free()]).collect();
        let mut links = Vec::new();
        for own in ports.iter().filter(|_| proxies) {
            let link = |port| {
                let started = Proxy::start((Ipv4Addr::LOCALHOST, port).into());
                started.map_err(|error| ServerError::because("a proxy between members", &error))
            };
            links.push([link(own[0])?, link(own[1])?]);
        }
        // In ticks: generous, since a loaded machine is no failure.
        let options = options.clone().setting("initLimit", "200").setting("syncLimit", "20");
        let mut servers = Vec::new();
        for id in 1..=MEMBERS {
            let members = (1..=MEMBERS).zip(&ports).fold(options.clone(), |options, (other, own)| {
                let link = links.get(usize::from(other) - 1).filter(|_| other != id);
                let [lead, elect] =
                    link.map_or(*own, |link| [link[0].address().port(), link[1].address().port()]);
                options.setting(&format!("server.{other}"), &format!("127.0.0.1:{lead}:{elect}"))
            });
            servers.push(ZooKeeperServer::start_at_once(members.member(id))?);
        }
        for server in &mut servers {
            server.wait_until_ready(START)?;
        }
        Ok(Self { servers, links })
    }

    /// Parts the leader from the others, who learn of it at once and elect another one, while it believes in its followers for
    /// twenty ticks and goes on answering what needs no majority. Returns which one it was.
    ///
    /// # Panics
    ///
    /// When nobody leads, or the ensemble was not started with [`start_over_proxies`](Self::start_over_proxies).
    pub fn strand_leader(&self) -> usize {
        let leader = self.leader().expect("a leader");
        let [lead, elect] = &self.links[leader];
        for link in [lead, elect] {
            link.set_arrivals(Arrivals::Reset);
        }
        elect.cut();
        lead.strand();
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
        self.servers.iter().map(ZooKeeperServer::address).collect()
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
        (0..self.servers.len()).find(|&index| self.mode(index).as_deref() == Some("leader"))
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
                let said: Vec<_> = self.servers.iter().map(ZooKeeperServer::output).collect();
                return Err(ServerError::new(format!("nobody leads after {START:?}\n{}", said.join("\n"))));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
