//! A process that works with locks as it is told to on its standard input, to be killed and frozen by tests.
//!
//! One JSON value a line: see `dlock_testkit::worker::{Order, Report}`.

fn main() -> std::io::Result<()> {
    dlock_testkit::worker::serve(async |url: String| dlock::from_url(&url).await)
}
