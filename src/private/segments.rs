//! A body that runs in one segment of a key after the other.

use std::pin::Pin;

use dlock_core::{Result, Segment, SegmentedSection};

use super::{Hidden, SectionKeys, Step};

/// A critical section in one segment after the other.
#[derive(Debug)]
pub struct Segments {
    hidden: Box<dyn Hidden>,
    count: u32,
}

impl Segments {
    pub(super) fn new(hidden: Box<dyn Hidden>, count: u32) -> Self {
        Self { hidden, count }
    }

    /// Takes a segment, if none is taken.
    ///
    /// # Errors
    ///
    /// Those of the look-up and of [`dlock_core::Segmented::run`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub fn enter(&mut self) -> Step<'_, Result<Segment>> {
        Box::pin(async move { self.inner()?.enter().await })
    }

    /// Runs the body in the segment that is taken. Returns `None` if the body said that the segment is exhausted.
    /// Otherwise the segment stays taken until [`leave`](Self::leave).
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter), and `Lost`.
    ///
    /// # Cancel safety
    ///
    /// The lock is released in the background once this is dropped.
    pub async fn run<F: Future>(&mut self, body: Pin<&mut F>) -> Result<Option<F::Output>> {
        self.inner()?.run_body(body).await
    }

    /// Releases the segment of a body that has returned.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the release goes on in the background.
    pub fn leave(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            if let Some(section) = &mut self.hidden.setup().segmented {
                section.leave().await;
            }
        })
    }

    fn inner(&mut self) -> Result<&mut SegmentedSection> {
        let setup = self.hidden.setup();
        let section = match setup.segmented.take() {
            Some(section) => section,
            None => {
                let locks = setup.locks()?;
                let SectionKeys::One(key) = &setup.keys else { unreachable!("the attribute gives one key") };
                SegmentedSection::new(setup.with_options(locks.lock(key)).segmented(self.count))
            }
        };
        Ok(setup.segmented.insert(section))
    }
}
