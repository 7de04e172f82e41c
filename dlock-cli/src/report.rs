//! Printing of a change, and the question before it.

use std::io::{self, Write, stderr, stdin, stdout};

use serde::Serialize;

use crate::show;
use crate::trouble::{self, DENIED, OTHER, Trouble, seen};

/// Prints the document or the text.
pub(crate) fn print(as_json: bool, document: &impl Serialize, text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    if as_json { writeln!(out, "{}", show::json(document)?) } else { writeln!(out, "{text}") }
}

/// Prints what was changed on a server. The exit code says that the change is made, which an output that cannot be
/// written does not undo: standard error then has the text.
pub(crate) fn changed(as_json: bool, document: &impl Serialize, text: &str) -> u8 {
    if let Err(error) = seen(print(as_json, document, text)) {
        trouble::say(&format!("standard output cannot be written: {error}; it was: {text}"));
    }
    0
}

/// Asks the question on standard error. Without a yes, also if the question or the answer is lost, the command ends
/// with an exit code other than 0.
pub(crate) fn confirm(question: &str, without_yes: &str) -> Result<(), Trouble> {
    let mut answer = String::new();
    let asked = stderr().write_all(question.as_bytes()).and_then(|()| stdin().read_line(&mut answer));
    asked.map_err(|error| Trouble::new(OTHER, format!("the question cannot be asked: {error}")))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Trouble::new(DENIED, without_yes)),
    }
}
