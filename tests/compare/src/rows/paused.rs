//! Holders that stand still for longer than their lease, and go on where they were.

use anyhow::{Result, bail};
use dlock::Fence;
use dlock_testkit::register::Register;

use super::{Cell, LIMIT, answers, wait_for};
use crate::stage::Stage;

/// The process is frozen with locks on all keys, until others have them and have written. Then it asks its library
/// whether it still holds them, and writes: where the library said so, and, with fences, in any case.
pub(super) async fn measure(stage: &Stage<'_>) -> Result<Cell> {
    let (rounds, each) = (stage.volume.of(2, 1), 10);
    let (mut believed, mut accepted, mut fenced) = (0, 0, true);
    let mut next = stage.open().await?;
    for _ in 0..rounds {
        // One that was paused before may still be connecting again.
        let mut holder = stage.open().await?;
        let keys = stage.keys(each);
        let old = holder.take(&keys, true).await?;
        // It would be told, in time, if it did not stand still.
        for (id, _) in &old {
            holder.ask(&format!("watch {id}")).await?;
        }
        holder.freeze()?;
        let mut waits = wait_for(&mut next, &keys, true).await?;
        let since = std::time::Instant::now();
        let new = answers(&mut waits, since, stage.lease * LIMIT).await;
        let taken_over = new.iter().flatten().filter(|said| said.is_acquired()).count();
        // They are there when it goes on.
        let mut checks = Vec::new();
        for (id, _) in &old {
            checks.push(holder.order(&format!("check {id}")).await?);
        }
        let registers: Vec<Register> = keys.iter().map(|_| Register::fenced()).collect();
        for (register, said) in registers.iter().zip(&new) {
            if let Some(fence) = said.as_ref().and_then(|said| said.fence()) {
                let _ = register.write(Fence::new(fence), 0, 1);
            }
        }
        holder.thaw()?;
        if taken_over == 0 {
            return Ok(Cell::Text(format!("keeps it: nobody else has it after {LIMIT}")));
        }
        if taken_over < each {
            bail!("{taken_over} of {each} locks were taken over");
        }
        for ((mut check, (_, fence)), register) in checks.into_iter().zip(&old).zip(&registers) {
            let said = check.answer(stage.lease * LIMIT).await;
            believed += usize::from(said.is_some_and(|said| said.words == "held"));
            match fence {
                Some(fence) => accepted += usize::from(register.write(Fence::new(*fence), 0, 2).is_ok()),
                None => fenced = false,
            }
        }
    }
    let count = rounds * each;
    let fence = if fenced { format!("{accepted} of {count}") } else { "no fence".to_owned() };
    Ok(Cell::Text(format!("{believed} of {count}; {fence}")))
}
