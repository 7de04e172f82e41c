//! Which keys a task wants, round by round.

const KEYS: usize = 10;

/// The keys of each round: two to eight, in an order of chance.
pub(crate) fn rounds(task: u64, rounds: usize) -> impl Iterator<Item = Vec<String>> {
    let mut random = fastrand(task);
    (0..rounds).map(move |_| {
        let mut keys: Vec<String> = (0..KEYS).map(|n| format!("k{n}")).collect();
        for n in (1..KEYS).rev() {
            keys.swap(n, random(n as u64 + 1) as usize);
        }
        keys.truncate(2 + random(7) as usize);
        keys
    })
}

/// A generator of its own for each task, so that a run can be repeated.
fn fastrand(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}
