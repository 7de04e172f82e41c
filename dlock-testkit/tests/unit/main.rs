//! The tools by themselves. Their tests lie here so that the suite's cases are compiled once.

mod cancel;
mod fences;
mod history;
mod overlaps;
mod sharing;
mod suite;
mod updates;
