//! Completions for shells, and the pages of the manual.

use std::io::{Write, stdout};
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

use crate::trouble::Trouble;

/// Prints the script by which a shell completes commands and options.
pub(crate) fn completions(mut program: Command, shell: Shell) -> Result<u8, Trouble> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, "dlock", &mut script);
    stdout().write_all(&script)?;
    Ok(0)
}

/// Prints the page of the program, or writes the pages of all commands into a directory.
pub(crate) fn manual(program: Command, directory: Option<&Path>) -> Result<u8, Trouble> {
    match directory {
        Some(directory) => clap_mangen::generate_to(program, directory)?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(program).render(&mut page)?;
            stdout().write_all(&page)?;
        }
    }
    Ok(0)
}
