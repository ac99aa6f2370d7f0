//! What is done with input that may be anything. The fuzzer and `tests/corpus.rs` (which replays what the fuzzer has
//! found worth keeping) have these in common.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use playdead::encode::{
    parse_base_chain, parse_chain_type, parse_counter, parse_elements, parse_flowtable, parse_table, split,
};
use playdead::kernel::{route, sockets};
use playdead::model::time::{duration, pause};
use playdead::model::{Host, Kind, Meta, Name, PeerSpec, Ports, Target};
use playdead::rules::read_back;
use playdead::scenario;

/// Plans of files that the fuzzer makes: a thousand rounds of a thousand steps are bounded, but slow.
const LONGEST_SCENARIO: usize = 4096;

/// The words of the command line that are read letter by letter.
pub fn peers(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<PeerSpec>() {
        Ok(spec) => check_spec(text, &spec),
        Err(error) => assert!(!error.is_empty()),
    }
    prints_as_read::<Ports>(text);
    prints_as_read::<Name>(text);
    prints_as_read::<Kind>(text);
    prints_as_read::<Meta>(text);
    if let Some(name) = Name::of_table(text) {
        assert_eq!(name.table(), text);
    }
    if let Ok(time) = duration(text) {
        assert_eq!(pause(text), Ok(time));
    }
}

fn check_spec(text: &str, spec: &PeerSpec) {
    assert!(!text.contains(|c: char| c.is_control() || c.is_whitespace()), "{text:?} is taken for a peer");
    let canonical = spec.canonical();
    let again: PeerSpec = canonical.parse().expect("what is canonical is a peer");
    assert_eq!((&again.host, again.ports, again.canonical()), (&spec.host, spec.ports, canonical), "{text:?}");
    if let Host::Net(net) = spec.host {
        assert_eq!(net, net.trunc(), "{text:?}");
        let target = Target { net, ports: spec.ports, label: None };
        assert!(target.covers(&target) && target.meets(&target), "{text:?}");
    }
}

/// What is read and printed is read as the same again.
fn prints_as_read<T: FromStr + Display + PartialEq + Debug>(text: &str)
where
    T::Err: Debug,
{
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().expect("what was printed is read"), value, "{text:?}");
    }
}

/// A scenario file and the plan that is made of it.
pub fn scenario(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if text.len() > LONGEST_SCENARIO {
        return;
    }
    let scenario = match scenario::parse(text) {
        Ok(scenario) => scenario,
        Err(error) => return check_error(text, &error),
    };
    let plan = scenario::plan(&scenario, text, 7);
    assert_eq!(plan, scenario::plan(&scenario, text, 7), "the same seed, another plan");
    match plan {
        Ok(plan) => assert!(plan.steps.is_sorted_by_key(|step| step.earliest), "{text:?}"),
        Err(error) => check_error(text, &error),
    }
}

/// `LINE: FIELD: what is wrong`, and a line of the file.
fn check_error(text: &str, error: &str) {
    let (line, what) = error.split_once(": ").expect("a line's number");
    let line: usize = line.parse().expect("a line's number");
    assert!((1..=text.lines().count() + 1).contains(&line), "{text:?}: {error:?}");
    assert!(!what.is_empty() && !error.contains('\n'), "{text:?}: {error:?}");
}

/// A datagram from the kernel; the first byte says of which of its parts.
pub fn netlink(data: &[u8]) {
    let Some((part, datagram)) = data.split_first() else { return };
    match part % 3 {
        0 => nf_tables(datagram),
        1 => {
            let _ = sockets::read_datagram(datagram);
        }
        _ => {
            let _ = route::read_datagram(datagram);
        }
    }
}

fn nf_tables(datagram: &[u8]) {
    // Also what no datagram could be split into.
    for message in split(datagram).into_iter().chain([datagram.to_vec()]) {
        if let Some(table) = parse_table(&message) {
            let _ = table.comment.unwrap_or_default().parse::<Meta>();
        }
        let _ = (parse_counter(&message), parse_chain_type(&message), parse_base_chain(&message));
        let _ = parse_flowtable(&message);
        for element in parse_elements(&message) {
            let last = if element.key_end.is_empty() { &element.key } else { &element.key_end };
            let _ = read_back(&element.key, last, element.comment);
        }
    }
}
