//! The signal from the connection to one hold.
//!
//! | state | `connect` | `lost` |
//! |---|---|---|
//! | `Open`: the grant was not seen yet | `Connected` | `Lost` |
//! | `Connected` | `Connected` | `Lost`, and the hold is notified |
//! | `Lost` | stays, and the hold is notified at once | `Lost` |

use dlock_core::Timestamp;
use dlock_core::backend::{Mutex, MutexGuard, Signal};

/// The signal from the connection to one hold, which may be connected after the connection has reported a loss.
#[derive(Debug, Default)]
pub(super) struct HoldSignal(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Open,
    Connected(Signal),
    Lost(String),
}

impl HoldSignal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Begins anew for a lock that was taken, of whose hold nothing is known yet.
    pub(super) fn open(&self) {
        *self.state() = State::Open;
    }

    pub(super) fn connect(&self, signal: Signal) {
        let mut state = self.state();
        match &*state {
            State::Lost(cause) => signal.lost(cause.clone()),
            _ => *state = State::Connected(signal),
        }
    }

    pub(super) fn lost(&self, cause: &str) {
        let before = std::mem::replace(&mut *self.state(), State::Lost(cause.to_owned()));
        if let State::Connected(signal) = before {
            signal.lost(cause.to_owned());
        }
    }

    pub(super) fn suspect(&self) {
        if let State::Connected(signal) = &*self.state() {
            signal.suspect();
        }
    }

    pub(super) fn trust(&self, proof: Timestamp) {
        if let State::Connected(signal) = &*self.state() {
            signal.trust(proof);
        }
    }
}
