//! Which requests and replies are to be lost or repeated.

use std::collections::BTreeMap;

use super::Loss;

/// What is to happen to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing.
    Pass,
    /// Its reply is lost.
    LoseReply(Loss),
    /// It is lost itself, with its connection.
    LoseRequest,
    /// Its reply arrives twice.
    RepeatReply,
}

#[derive(Debug)]
struct Planned {
    after: u64,
    name: String,
    fate: Fate,
}

/// Counts requests, over all connections of a proxy.
#[derive(Debug, Default)]
pub(super) struct Fates {
    planned: Vec<Planned>,
    requests: BTreeMap<String, u64>,
}

impl Fates {
    pub(super) fn lose_reply(&mut self, nth: u64, name: &str, loss: Loss) {
        self.plan(nth, name, Fate::LoseReply(loss));
    }

    pub(super) fn lose_request(&mut self, nth: u64, name: &str) {
        self.plan(nth, name, Fate::LoseRequest);
    }

    pub(super) fn repeat_reply(&mut self, nth: u64, name: &str) {
        self.plan(nth, name, Fate::RepeatReply);
    }

    fn plan(&mut self, nth: u64, name: &str, fate: Fate) {
        self.planned.push(Planned { after: nth, name: name.to_uppercase(), fate });
    }

    pub(super) fn forget(&mut self) {
        self.planned.clear();
    }

    pub(super) fn requests(&self) -> &BTreeMap<String, u64> {
        &self.requests
    }

    /// Counts a request and says what is to happen to it.
    pub(super) fn request(&mut self, name: String) -> Fate {
        let mut fate = Fate::Pass;
        self.planned.retain_mut(|planned| {
            if planned.name.is_empty() || planned.name == name {
                planned.after -= 1;
                if planned.after == 0 {
                    fate = planned.fate;
                }
            }
            planned.after > 0
        });
        *self.requests.entry(name).or_default() += 1;
        fate
    }
}
