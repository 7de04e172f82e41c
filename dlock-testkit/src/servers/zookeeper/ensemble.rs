//! Three servers of which one leads.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Administrator, EARLY_ANSWER, Ports, START, ServerError, ZooKeeperOptions, ZooKeeperServer};

const MEMBERS: u8 = 3;

/// Three servers that go on when one of them fails.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    servers: Vec<ZooKeeperServer>,
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
        let members: Vec<_> = (1..=MEMBERS)
            .map(|id| (format!("server.{id}"), format!("127.0.0.1:{}:{}", Ports::free(), Ports::free())))
            .collect();
        // In ticks: generous, since a loaded machine is no failure.
        let options = options.clone().setting("initLimit", "200").setting("syncLimit", "20");
        let options = members.iter().fold(options, |options, (name, value)| options.setting(name, value));
        let started = (1..=MEMBERS).map(|id| ZooKeeperServer::start_at_once(options.clone().member(id)));
        let mut servers = started.collect::<Result<Vec<_>, _>>()?;
        for server in &mut servers {
            server.wait_until_ready(START)?;
        }
        Ok(Self { servers })
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
