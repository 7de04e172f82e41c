//! The holders of a key, which may be several.

use crate::holder::Holder;

/// The holders of a key, and the number of its permits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupancy {
    /// The number of permits of the semaphore; `None` if the key is not known as one.
    pub permits: Option<u32>,
    /// All holders, in any order.
    pub holders: Vec<Holder>,
}

impl Occupancy {
    /// Creates the occupancy of a key with these holders.
    #[must_use]
    pub const fn new(permits: Option<u32>, holders: Vec<Holder>) -> Self {
        Self { permits, holders }
    }

    /// Returns the number of permits that are taken.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.holders.iter().fold(0, |sum, holder| sum.saturating_add(holder.mode.taken()))
    }
}
