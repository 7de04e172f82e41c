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
        let State::Lost(cause) = &*state else { return *state = State::Connected(signal) };
        let cause = cause.clone();
        drop(state);
        // The connection broke between the answer and this call: the hold is lost from its beginning.
        signal.lost(cause);
    }

    pub(super) fn lost(&self, cause: &str) {
        // Also from `Open`, for the hold that is connected later.
        let before = std::mem::replace(&mut *self.state(), State::Lost(cause.to_owned()));
        if let State::Connected(signal) = before {
            signal.lost(cause.to_owned());
        }
    }

    pub(super) fn suspect(&self) {
        if let Some(signal) = self.connected() {
            signal.suspect();
        }
    }

    pub(super) fn trust(&self, proof: Timestamp) {
        if let Some(signal) = self.connected() {
            signal.trust(proof);
        }
    }

    /// Returns the signal, to be sent without the mutex: it runs wakers and subscribers. One task sends them all, so
    /// that they keep their order.
    fn connected(&self) -> Option<Signal> {
        match &*self.state() {
            State::Connected(signal) => Some(signal.clone()),
            _ => None,
        }
    }
}
