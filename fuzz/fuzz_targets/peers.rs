#![no_main]

#[path = "../src/entries.rs"]
#[allow(dead_code, reason = "every target uses one of them")]
mod entries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entries::peers(data));
