//! Several things at the same time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, anyhow};

/// Does all at the same time, each by a thread of its own; gives what came of each, in their order.
pub(super) fn at_once<T: Send>(tasks: Vec<impl FnOnce() -> Result<T> + Send>) -> Vec<Result<T>> {
    at_most(tasks.len(), tasks)
}

/// The same, but not more than so many at once. This thread is one of those that do it, and where there may be no more
/// (EAGAIN of `clone(2)`), fewer do it all.
pub(super) fn at_most<T: Send>(threads: usize, tasks: Vec<impl FnOnce() -> Result<T> + Send>) -> Vec<Result<T>> {
    let threads = threads.min(tasks.len());
    let mut results: Vec<_> = tasks.iter().map(|_| None).collect();
    let left = Mutex::new(tasks.into_iter().zip(&mut results));
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((task, result)) = next() {
            *result = catch_unwind(AssertUnwindSafe(task)).ok();
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    drop(left);
    results.into_iter().map(|result| result.unwrap_or_else(|| Err(anyhow!("a thread panicked")))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use anyhow::bail;

    use super::*;

    #[test]
    fn all_are_done_at_the_same_time_and_told_in_order() {
        let together = Barrier::new(20);
        let task = |number| {
            let together = &together;
            move || {
                together.wait();
                Ok(number)
            }
        };
        let done: Vec<i32> = at_once((0..20).map(task).collect()).into_iter().map(Result::unwrap).collect();
        assert_eq!(done, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn one_that_fails_or_panics_stops_no_other() {
        let task = |number| {
            move || match number {
                3 => bail!("no"),
                5 => panic!("a bug"),
                number => Ok(number),
            }
        };
        for threads in [0, 1, 2, 50] {
            let done = at_most(threads, (0..9).map(task).collect());
            let said: Vec<_> =
                done.into_iter().map(|one| one.map_or_else(|e| e.to_string(), |n| n.to_string())).collect();
            assert_eq!(said.join(" "), "0 1 2 no 4 a thread panicked 6 7 8");
        }
    }
}
