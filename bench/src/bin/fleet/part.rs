//! One process of a fleet: clients with an engine each, that hold locks.

use std::io::stdin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use dlock::redis::Redis;
use dlock::sql::{Mysql, MysqlOptions, Postgres, PostgresOptions, Sqlite};
use dlock::{Guard, Locks, LocksBuilder, Wait};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

/// The lease of locks that a session keeps, in seconds.
const LONG: u64 = 4 * 3_600;

/// How many clients of a process come at the same time.
const COMING: usize = 16;

/// The part of a process in the measurement.
#[derive(Clone, Debug, Args)]
pub(crate) struct Part {
    /// The server
    pub(crate) url: String,
    /// Which of the processes it is
    pub(crate) number: usize,
    /// How many processes there are
    pub(crate) processes: usize,
    /// How many clients it has
    pub(crate) clients: usize,
    /// How many locks each of them holds
    pub(crate) each: usize,
    /// The lease, in seconds
    pub(crate) lease: u64,
    /// The timeout of a session in seconds; 0 without one
    pub(crate) session: u64,
    /// How many clients share connections to Redis
    pub(crate) sharing: usize,
    /// How many tasks wait, when it is asked for
    pub(crate) waiters: usize,
}

/// The figures of one process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said {
    /// Seconds that the last thing took.
    pub(crate) took: f64,
    /// Bytes in memory.
    pub(crate) memory: f64,
    pub(crate) held: f64,
    pub(crate) renewals: f64,
    pub(crate) failed: f64,
    pub(crate) lost: f64,
    /// Seconds of processor time.
    pub(crate) used: f64,
    /// Locks of another process that were taken after its end.
    pub(crate) inherited: f64,
}

impl Said {
    fn figures(&self) -> [f64; 8] {
        let Self { took, memory, held, renewals, failed, lost, used, inherited } = *self;
        [took, memory, held, renewals, failed, lost, used, inherited]
    }

    fn read(line: &str) -> Result<Self> {
        let figures = line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        let [took, memory, held, renewals, failed, lost, used, inherited] = figures[..] else {
            anyhow::bail!("not what a process says: {line:?}")
        };
        Ok(Self { took, memory, held, renewals, failed, lost, used, inherited })
    }

    /// What all of them say; of the time the longest.
    pub(crate) fn all(said: &[Self]) -> Self {
        said.iter().fold(Self::default(), |all, one| Self {
            took: all.took.max(one.took),
            memory: all.memory + one.memory,
            held: all.held + one.held,
            renewals: all.renewals + one.renewals,
            failed: all.failed + one.failed,
            lost: all.lost + one.lost,
            used: all.used + one.used,
            inherited: all.inherited + one.inherited,
        })
    }
}

/// A process that was started, and how to talk with it.
pub(crate) struct Running {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Has it do something, and reads what it says then.
    pub(crate) async fn tell(&mut self, word: &str) -> Result<()> {
        self.to.write_all(format!("{word}\n").as_bytes()).await.context("a process has ended")
    }

    pub(crate) async fn says(&mut self) -> Result<Said> {
        Said::read(&self.from.next_line().await?.context("a process has ended")?)
    }

    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    pub(crate) async fn end(mut self) -> Result<()> {
        drop(self.to);
        anyhow::ensure!(self.child.wait().await?.success(), "a process failed");
        Ok(())
    }
}

/// One client, with what it holds.
struct Client {
    number: usize,
    locks: Locks,
    guards: Vec<Guard>,
}

/// Connections that clients of one process share.
#[derive(Clone)]
enum Shared {
    Nothing,
    Redis(Vec<Redis>),
    Postgres(Postgres),
    Mysql(Mysql),
    Sqlite(Sqlite),
}

impl Part {
    /// Starts a process for it.
    pub(crate) fn start(&self) -> Result<Running> {
        let Self { url, number, processes, clients, each, lease, session, sharing, waiters } = self;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["part", url]).args([number, processes, clients, each].map(usize::to_string)).args([
            lease.to_string(),
            session.to_string(),
            sharing.to_string(),
            waiters.to_string(),
        ]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot start a process of this program")?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (to, from) = (to.context("it is piped")?, from.context("it is piped")?);
        Ok(Running { child, to, from: BufReader::new(from).lines() })
    }

    /// Carries out what the leading process asks for.
    pub(crate) async fn play(&self) -> Result<()> {
        // Clients of one process share their connections to a database, which has few of them.
        let shared = self.shared().await?;
        say(&[], Duration::ZERO, 0)?;
        let (mut clients, mut waiting) = (Vec::<Client>::new(), JoinSet::new());
        let mut inherited = Vec::new();
        while let Some(word) = tokio::task::spawn_blocking(|| stdin().lines().next()).await?.transpose()? {
            let begun = Instant::now();
            match &*word {
                "come" => clients = self.come((0..self.clients).collect(), &shared).await?,
                "deploy" => {
                    let gone: Vec<_> = clients.drain(..self.clients.div_ceil(10)).collect();
                    let numbers = gone.iter().map(|client| client.number).collect();
                    let mut leaving = JoinSet::new();
                    for client in gone {
                        // What others use too is not closed.
                        let closes = matches!(shared, Shared::Nothing);
                        leaving.spawn(async move {
                            for guard in client.guards {
                                guard.release().await?;
                            }
                            if closes { client.locks.shutdown(Duration::from_secs(20)).await } else { Ok(()) }
                        });
                    }
                    while let Some(left) = leaving.join_next().await {
                        left??;
                    }
                    clients.extend(self.come(numbers, &shared).await?);
                }
                "wait" => self.wait(&clients, &mut waiting),
                "inherit" => {
                    self.wait(&clients, &mut waiting);
                    while let Some(guard) = waiting.join_next().await {
                        inherited.push(guard??);
                    }
                }
                "leave" => waiting.shutdown().await,
                _ => {}
            }
            say(&clients, begun.elapsed(), inherited.len())?;
        }
        // What is held is left to the end of the server.
        std::process::exit(0)
    }

    /// Has tasks wait for locks of another process, if there is one.
    fn wait(&self, clients: &[Client], waiting: &mut JoinSet<dlock::Result<Guard>>) {
        for n in 0..self.waiters {
            let client = &clients[n % clients.len()];
            let (of, its) = ((self.number + 1) % self.processes, n / clients.len() % self.each);
            let lock = client.locks.lock(key(of, client.number, its)).with_wait(Wait::Forever);
            waiting.spawn(async move { lock.acquire().await });
        }
    }

    /// What clients of this process have in common.
    async fn shared(&self) -> Result<Shared> {
        let url = &*self.url;
        Ok(match url.split_once(':').map_or("", |(scheme, _)| scheme) {
            "postgres" | "postgresql" => {
                Shared::Postgres(PostgresOptions::from_url(url)?.with_max_connections(4).connect().await?)
            }
            "mysql" | "mariadb" => {
                Shared::Mysql(MysqlOptions::from_url(url)?.with_max_connections(4).connect().await?)
            }
            "sqlite" => Shared::Sqlite(Sqlite::connect(url).await?),
            _ if self.sharing > 1 => {
                let mut all = Vec::new();
                for _ in 0..self.clients.div_ceil(self.sharing) {
                    all.push(Redis::connect(url).await?);
                }
                Shared::Redis(all)
            }
            _ => Shared::Nothing,
        })
    }

    /// Has these clients take their locks.
    async fn come(&self, numbers: Vec<usize>, shared: &Shared) -> Result<Vec<Client>> {
        let (mut coming, mut clients) = (JoinSet::new(), Vec::new());
        for number in numbers {
            if coming.len() >= COMING
                && let Some(client) = coming.join_next().await
            {
                clients.push(client??);
            }
            let (part, shared) = (self.clone(), shared.clone());
            coming.spawn(async move { part.client(number, shared).await });
        }
        while let Some(client) = coming.join_next().await {
            clients.push(client??);
        }
        Ok(clients)
    }

    fn sessions(&self, builder: LocksBuilder) -> LocksBuilder {
        match self.session {
            0 => builder,
            timeout => builder.with_session(Duration::from_secs(timeout)),
        }
    }

    /// Connects, again and again: many do so at the same time.
    async fn connect(&self) -> Result<Locks> {
        let mut tries = 0;
        loop {
            match async { self.sessions(dlock::from_url(&self.url).await?).build() }.await {
                Err(error) if error.is_retryable() && tries < 60 => tries += 1,
                connected => return Ok(connected?),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn client(&self, number: usize, shared: Shared) -> Result<Client> {
        let locks = match shared {
            Shared::Postgres(backend) => self.sessions(Locks::builder(backend)).build()?,
            Shared::Mysql(backend) => self.sessions(Locks::builder(backend)).build()?,
            Shared::Sqlite(backend) => self.sessions(Locks::builder(backend)).build()?,
            Shared::Redis(all) => self.sessions(Locks::builder(all[number % all.len()].clone())).build()?,
            Shared::Nothing => self.connect().await?,
        };
        let (mut taking, mut guards) = (JoinSet::new(), Vec::with_capacity(self.each));
        for n in 0..self.each {
            let lock = locks
                .lock(key(self.number, number, n))
                .with_lease(Duration::from_secs(if self.session > 0 { LONG } else { self.lease }))
                .with_wait(Wait::Forever);
            taking.spawn(async move { lock.acquire().await });
        }
        while let Some(guard) = taking.join_next().await {
            guards.push(guard??);
        }
        Ok(Client { number, locks, guards })
    }
}

/// A lock of a client of a process.
fn key(process: usize, client: usize, number: usize) -> String {
    format!("fleet:{process}:{client}:{number}")
}

fn say(clients: &[Client], took: Duration, inherited: usize) -> Result<()> {
    let (took, inherited) = (took.as_secs_f64(), inherited as f64);
    let mut said = Said { took, inherited, ..Said::default() };
    for client in clients {
        let stats = client.locks.stats();
        said.held += stats.held as f64;
        said.renewals += stats.renewals as f64;
        said.failed += stats.failed_renewals as f64;
        said.lost += stats.lost as f64;
    }
    said.used = dlock_bench::process_time().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
    said.memory = resident.context("a figure for what is resident")?.parse::<f64>()? * 1024.0;
    println!("{}", said.figures().map(|figure| figure.to_string()).join(" "));
    Ok(())
}
