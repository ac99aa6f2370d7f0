//! What the fuzzer found worth keeping, and the values it began with, on every run of the tests (`scripts/fuzz` goes on
//! from there).

#[path = "../fuzz/src/entries.rs"]
#[allow(unreachable_pub, reason = "also a part of the fuzzer, which is another package")]
mod entries;

use std::path::Path;

use proptest::prelude::*;

fn replay(name: &str, entry: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut files = 0;
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
        files += 1;
    }
    assert!(files > 3, "{} is empty", directory.display());
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
