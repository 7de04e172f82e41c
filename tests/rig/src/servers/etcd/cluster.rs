//! Three servers of which one leads.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::proxy::{Direction, Flow, Proxy};

use super::front::Front;
use super::options::Member;
use super::{EARLY_ANSWER, EtcdAdministrator, EtcdOptions, EtcdServer, Ports, START, ServerError};

const MEMBERS: usize = 3;

/// Three servers that go on when one of them fails.
///
/// They reach each other through proxies, one for each member and each other one, by which a test parts them.
#[derive(Debug)]
pub struct EtcdCluster {
    // Dropped first: the proxies have nothing to pass on then.
    servers: Vec<EtcdServer>,
    _fronts: Vec<Front>,
    links: Vec<Link>,
}

/// What one member reaches another one by.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    proxy: Proxy,
}

impl EtcdCluster {
    /// A cluster that has elected its leader, and whose members all serve.
    ///
    /// # Errors
    ///
    /// When `etcd` is missing or does not start.
    pub fn start() -> Result<Self, ServerError> {
        Self::start_with(&EtcdOptions::default())
    }

    /// With these settings of every member. Each has certificates of its own, if any.
    ///
    /// # Errors
    ///
    /// When `etcd` is missing or does not start.
    pub fn start_with(options: &EtcdOptions) -> Result<Self, ServerError> {
        let mut tries = 5;
        loop {
            match Self::start_once(options) {
                // Another process may have taken a port that was free a moment ago.
                Err(error) if tries > 0 && error.to_string().contains("in use") => tries -= 1,
                other => return other,
            }
        }
    }

    fn start_once(options: &EtcdOptions) -> Result<Self, ServerError> {
        let ports: Vec<u16> = (0..MEMBERS).map(|_| Ports::free()).collect();
        let proxied = |error| ServerError::because("a proxy between members", &error);
        let mut links = Vec::new();
        for (from, to) in (0..MEMBERS).flat_map(|from| (0..MEMBERS).map(move |to| (from, to))) {
            if from != to {
                let target = (Ipv4Addr::LOCALHOST, ports[to]).into();
                links.push(Link { from, to, proxy: Proxy::start(target).map_err(proxied)? });
            }
        }
        let (mut servers, mut fronts) = (Vec::new(), Vec::new());
        for member in 0..MEMBERS {
            let own = links.iter().filter(|link| link.from == member);
            let front = Front::start(own.map(|link| (ports[link.to], link.proxy.address())).collect());
            let front = front.map_err(proxied)?;
            servers.push(EtcdServer::start_at_once(
                options.clone(),
                Member::of(&ports, member, front.address()),
            )?);
            fronts.push(front);
        }
        for server in &mut servers {
            server.wait_until_ready(START)?;
        }
        servers[0].admin().set_up(options)?;
        Ok(Self { servers, _fronts: fronts, links })
    }

    /// The members.
    #[must_use]
    pub fn servers(&self) -> &[EtcdServer] {
        &self.servers
    }

    /// A member.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub fn server_mut(&mut self, index: usize) -> &mut EtcdServer {
        &mut self.servers[index]
    }

    /// Where the members listen.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address()).collect()
    }

    /// `etcd://` of all members, with the name and the password of the administrator where they ask for one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_through(&self.addresses())
    }

    /// [`url`](Self::url), but to these addresses: proxies in front of the members.
    #[must_use]
    pub fn url_through(&self, addresses: &[SocketAddr]) -> String {
        let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        format!("etcd://{}{}", self.servers[0].options.who(), addresses.join(","))
    }

    /// The administrator of a member that serves.
    ///
    /// # Panics
    ///
    /// When no member serves.
    #[must_use]
    #[track_caller]
    pub fn admin(&self) -> EtcdAdministrator {
        self.servers.iter().find(|server| serves(server)).expect("a member that serves").admin()
    }

    /// Who leads at the moment, if one does and has a majority.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        (0..MEMBERS).find(|&index| self.leads(index) && serves(&self.servers[index]))
    }

    /// Whether this member takes itself for the leader, which one that is parted from the others does for a while.
    #[must_use]
    pub fn leads(&self, index: usize) -> bool {
        let server = &self.servers[index];
        server.is_running() && server.admin().leads(EARLY_ANSWER)
    }

    /// Waits until one of those that run leads, and has a majority.
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

    /// Parts a member from both others, as a network does that drops packets, until [`heal`](Self::heal). Clients still
    /// reach it. One that leads believes in its followers for an election timeout, and answers what needs no majority.
    pub fn isolate(&self, index: usize) {
        for link in self.links.iter().filter(|link| link.from == index || link.to == index) {
            link.proxy.black_hole();
        }
    }

    /// [`isolate`](Self::isolate)s the leader, and returns which one it was.
    ///
    /// # Errors
    ///
    /// When nobody leads for a minute.
    pub fn isolate_leader(&self) -> Result<usize, ServerError> {
        let leader = self.wait_for_leader()?;
        self.isolate(leader);
        Ok(leader)
    }

    /// What members send each other takes this long on its way, until [`heal`](Self::heal).
    pub fn delay(&self, by: Duration) {
        for Link { proxy, .. } in &self.links {
            proxy.set(Direction::ToServer, Flow::Delay(by));
            proxy.set(Direction::ToClient, Flow::Delay(by));
        }
    }

    /// Ends [`isolate`](Self::isolate) and [`delay`](Self::delay). What is still on its way is lost, and the members
    /// connect to each other again.
    pub fn heal(&self) {
        for Link { proxy, .. } in &self.links {
            proxy.cut();
            proxy.mend();
        }
    }
}

/// Whether a member answers, which needs a majority.
fn serves(server: &EtcdServer) -> bool {
    server.is_running() && server.admin().health(EARLY_ANSWER).is_ok()
}
