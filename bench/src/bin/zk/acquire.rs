//! How long one acquire takes, and one whole cycle, one at a time.

use std::time::Instant;

use anyhow::Result;
use dlock_bench::report::{Row, Spread};
use dlock_core::Locks;

use crate::Bench;
use crate::clients::{self, Bare};

const KEY: &str = "room_0";

/// Microseconds of each acquire, and of each cycle.
#[derive(Default)]
struct Took {
    acquire: Vec<f64>,
    cycle: Vec<f64>,
}

impl Took {
    fn add(&mut self, start: Instant, acquired: Instant) {
        let micros = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e6;
        self.acquire.push(micros(start, acquired));
        self.cycle.push(micros(start, Instant::now()));
    }

    /// The middle ones.
    fn p50(self) -> (f64, f64) {
        (Spread::of(self.acquire).median, Spread::of(self.cycle).median)
    }
}

/// What each client took in one round: its acquire and its cycle.
type Round = [(f64, f64); 3];

struct Clients {
    ours: Locks,
    together: Bare,
    in_turn: Bare,
}

impl Clients {
    async fn run(&self, which: usize, bench: &Bench) -> Result<(f64, f64)> {
        let (begin, mut took) = (Instant::now(), Took::default());
        while begin.elapsed() < bench.slice {
            let start = Instant::now();
            if which == 0 {
                let guard = self.ours.lock(KEY).acquire().await?;
                let acquired = Instant::now();
                guard.release().await?;
                took.add(start, acquired);
            } else {
                let bare = if which == 1 { &self.together } else { &self.in_turn };
                let path = bare.acquire(KEY).await?;
                let acquired = Instant::now();
                bare.release(&path).await?;
                took.add(start, acquired);
            }
        }
        Ok(took.p50())
    }
}

pub(crate) fn uncontended(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime()?.block_on(measure(bench))
}

async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let clients = Clients {
        ours: clients::dlock(&bench.server.url()).await?,
        together: Bare::connect(&bench.server, false).await?,
        in_turn: Bare::connect(&bench.server, true).await?,
    };
    clients.together.prepare(1).await?;
    let mut rounds = Vec::new();
    // The first rounds warm up, the virtual machine of the server too, and are not counted.
    for round in 0..bench.rounds + 5 {
        let mut took = [(0.0, 0.0); 3];
        for turn in 0..3 {
            let which = (turn + round) % 3;
            took[which] = clients.run(which, bench).await?;
        }
        if round >= 5 {
            rounds.push(took);
        }
    }
    clients.ours.shutdown(clients::SESSION).await?;
    let spread = |figure: fn(&Round) -> f64| Spread::of(rounds.iter().map(figure).collect());
    let acquire_ratio = spread(|took| took[0].0 / took[1].0);
    let cycle_ratio = spread(|took| took[0].1 / took[2].1);
    Ok(vec![
        Row::spread("acquire: dlock", spread(|took| took[0].0), "us"),
        Row::spread("    create and list sent together, bare client", spread(|took| took[1].0), "us"),
        Row::spread("    create, then list, bare client", spread(|took| took[2].0), "us"),
        Row::spread("    dlock / together", acquire_ratio, "x").at_most(acquire_ratio.median, 1.15, "x"),
        Row::spread("cycle: dlock", spread(|took| took[0].1), "us"),
        Row::spread("    create and list together, then delete, bare client", spread(|took| took[1].1), "us"),
        Row::spread("    create, list, delete in turn, bare client", spread(|took| took[2].1), "us"),
        Row::spread("    dlock / in turn", cycle_ratio, "x").at_most(cycle_ratio.median, 0.85, "x"),
    ])
}
