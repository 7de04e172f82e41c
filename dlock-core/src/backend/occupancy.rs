//! Who holds a key, where that may be several.

use crate::holder::Holder;

/// Who holds a key, and how much of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupancy {
    /// How many permits the semaphore has; `None` where the key is not known as one.
    pub permits: Option<u32>,
    /// All who hold it, in any order.
    pub holders: Vec<Holder>,
}

impl Occupancy {
    /// Creates the occupancy of a key that these hold.
    #[must_use]
    pub const fn new(permits: Option<u32>, holders: Vec<Holder>) -> Self {
        Self { permits, holders }
    }

    /// Returns how many permits are taken.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.holders.iter().fold(0, |sum, holder| sum.saturating_add(holder.mode.taken()))
    }
}
