//! One row: a failure and where the peer sits, made for real once, and by playdead from every vantage.

use std::sync::{PoisonError, RwLock};
use std::thread;

use crate::cell::{Cell, Result};
use crate::compare::compare;
use crate::failures::Failure;
use crate::known;
use crate::pace;
use crate::places::{Location, Rig, Vantage};
use crate::record::{Later, Record, record};

/// How often a row is measured again, alone, because the outcomes agree and something else differs without a name: the
/// machine has other things to do, and a difference that is one shows every time.
const REPEATS: u32 = 2;
/// The same at most, where the machine stood still in some of them: those do not count.
const TRIES: u32 = 8;
/// Held by all rows at once, or by one that is measured again.
static MACHINE: RwLock<()> = RwLock::new(());
/// Where the results go, one file a row.
pub(crate) const DIRECTORY: &str = "PLAYDEAD_FIDELITY_DIR";

/// Measures, writes the results down, and says what is wrong with them.
pub(crate) fn check(failure: &'static Failure, location: Location) -> std::result::Result<(), String> {
    let results = measure(failure, location);
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        let lines: Vec<_> = results.iter().map(|result| serde_json::to_string(result).unwrap() + "\n").collect();
        let name = failure.row(location) + ".jsonl";
        std::fs::write(std::path::Path::new(&directory).join(name), lines.concat()).unwrap();
    }
    let wrong: Vec<_> = results.iter().filter_map(Result::wrong).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn measure(failure: &'static Failure, location: Location) -> Vec<Result> {
    let vantages = location.vantages();
    let mut results = {
        let _beside_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        compared(failure, location, vantages)
    };
    let (mut repeats, mut tries) = (0, 0);
    while repeats < REPEATS && tries < TRIES {
        let differs =
            |vantage: &Vantage| results.iter().any(|(cell, result)| cell.vantage == *vantage && is_again(result));
        let again: Vec<_> = vantages.iter().copied().filter(differs).collect();
        if again.is_empty() {
            break;
        }
        let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        let (fresh, stall) = pace::stall_during(|| compared(failure, location, &again));
        tries += 1;
        repeats += u32::from(!pace::is_stalled(stall));
        for (cell, fresh) in fresh {
            let (_, old) = results.iter_mut().find(|(known, _)| *known == cell).unwrap();
            if is_again(old) {
                *old = Result { repeats: old.repeats + 1, ..fresh };
            }
        }
    }
    results.into_iter().map(|(_, result)| result).collect()
}

fn is_again(result: &Result) -> bool {
    // Where the whole machine stands still at times, so does one of two real peers.
    let perhaps_chance = result.difference.perhaps_chance || (pace::is_slow() && !result.is_equal());
    result.named.is_none() && perhaps_chance
}

fn compared(failure: &'static Failure, location: Location, vantages: &[Vantage]) -> Vec<(Cell, Result)> {
    let with_itself = std::env::var(crate::SCOPE).is_ok_and(|scope| scope == "real");
    let once = |vantage: Option<Vantage>| run(failure, location, vantage.filter(|_| !with_itself));
    let all = [None].into_iter().chain(vantages.iter().copied().map(Some));
    // Where a command takes a second of the processor, those that start at once make the others' timers late.
    let mut records: Vec<_> = if pace::is_slow() {
        all.map(once).collect()
    } else {
        thread::scope(|scope| {
            let started: Vec<_> = all.map(|vantage| scope.spawn(move || once(vantage))).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    let simulated: Vec<_> = vantages.iter().copied().zip(records.split_off(1)).collect();
    let real = &records[0];
    let known = if with_itself { Vec::new() } else { known::all() };
    let of_cell = |cell: Cell| {
        let (_, simulated) = simulated.iter().find(|(vantage, _)| *vantage == cell.vantage)?;
        let key = (cell.family, cell.probe);
        let name = cell.name();
        let difference = compare(&real[&key], &simulated[&key]);
        let named = known.iter().find(|known| known.covers(&name)).map(|known| known.name.clone());
        Some((cell, Result { cell: name, named, repeats: 0, difference }))
    };
    Cell::of(failure, location).filter_map(of_cell).collect()
}

/// What the client sees of the failure: made by playdead from this vantage, or for real.
pub(crate) fn run(failure: &Failure, location: Location, vantage: Option<Vantage>) -> Record {
    let event = |rig: &mut Rig| match vantage {
        None => (failure.real)(rig),
        Some(vantage) => failure.simulate(rig, vantage),
    };
    let mend = |rig: &Rig| match vantage {
        None => failure.mend.unwrap()(rig),
        Some(vantage) => drop(rig.segment.playdead(vantage.at(), "heal")),
    };
    let later = failure.mended_after().map(|after| (after, &mend as &dyn Fn(&Rig)));
    run_with(failure, location, event, later)
}

/// What the client sees of whatever happens to a peer that is prepared for this failure.
pub(crate) fn run_with(
    failure: &Failure,
    location: Location,
    event: impl FnOnce(&mut Rig),
    later: Option<Later>,
) -> Record {
    let mut rig = Rig::new(location, failure.needs_etcd());
    (failure.prepare)(&mut rig);
    record(&mut rig, failure, event, later)
}
