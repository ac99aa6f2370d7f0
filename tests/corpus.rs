//! What the fuzzer found worth keeping, and the values it began with, on every run of the tests (`scripts/fuzz` goes on
//! from there).

#[path = "../fuzz/src/entries.rs"]
#[allow(unreachable_pub, reason = "also a part of the fuzzer, which is another package")]
mod entries;

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;

/// How long what is known is changed at random, in seconds for each of the three: `PLAYDEAD_MUTATE`, 1 if not said. It needs
/// no nightly Rust, but does not see which way an input takes through the code.
fn time_to_mutate() -> Duration {
    Duration::from_secs(std::env::var("PLAYDEAD_MUTATE").map_or(1, |seconds| seconds.parse().unwrap()))
}

fn mutate(inputs: &[Vec<u8>], entry: fn(&[u8])) -> u64 {
    let (until, mut done) = (Instant::now() + time_to_mutate(), 0);
    while Instant::now() < until {
        let mut input = inputs[fastrand::usize(..inputs.len())].clone();
        for _ in 0..fastrand::usize(1..6) {
            let at = fastrand::usize(..=input.len());
            let other = &inputs[fastrand::usize(..inputs.len())];
            let from = fastrand::usize(..=other.len());
            let piece = &other[from..other.len().min(from + fastrand::usize(..32))];
            let end = input.len().min(at + fastrand::usize(..32));
            match fastrand::u8(..4) {
                0 => input.truncate(at.max(1)),
                1 => drop(input.splice(at..end, piece.iter().copied())),
                2 => input.insert(at, fastrand::u8(..)),
                _ => input[at..end].iter_mut().take(2).for_each(|byte| *byte ^= 1 << fastrand::u8(..8)),
            }
        }
        entry(&input);
        done += 1;
    }
    done
}

fn replay(name: &str, entry: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut inputs = Vec::new();
    for file in directory.read_dir().unwrap() {
        let input = std::fs::read(file.unwrap().path()).unwrap();
        entry(&input);
        // A part of it, and one with a bit that fell over, are no reason to fail either.
        for cut in (0..input.len()).step_by(input.len() / 64 + 1) {
            entry(&input[..cut]);
            let mut fallen = input.clone();
            fallen[cut] ^= 1 << (cut % 8);
            entry(&fallen);
        }
        inputs.push(input);
    }
    assert!(inputs.len() > 3, "{} is empty", directory.display());
    let done = mutate(&inputs, entry);
    println!("{name}: {done} mutants in {:?}", time_to_mutate());
}

#[test]
fn peers_names_and_comments_are_read_or_refused() {
    replay("peers", entries::peers);
}

#[test]
fn scenario_files_are_planned_or_refused() {
    replay("scenario", entries::scenario);
}

#[test]
fn datagrams_of_the_kernel_are_read_or_refused() {
    replay("netlink", entries::netlink);
}

proptest! {
    #[test]
    fn any_text_is_a_peer_or_is_refused(text in "\\PC{0,40}|[0-9a-f.:/\\[\\]?%-]{0,40}") {
        entries::peers(text.as_bytes());
    }

    #[test]
    fn any_bytes_are_a_datagram_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        entries::netlink(&bytes);
    }
}
