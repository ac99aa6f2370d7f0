use super::*;
use crate::model::expect::KINDS;
use crate::model::observation::{Observation, QueuedError, Step, What};

fn seen(target: &str, probe: Probe, outcome: Outcome) -> Observation {
    Observation {
        target: target.parse().unwrap(),
        probe,
        outcome,
        started_ms: 0.0,
        took_ms: 1000.0,
        steps: Vec::new(),
        sent: 1,
        first_line: None,
        tcp: None,
        errors: Vec::new(),
    }
}

fn met(expect: Expect, probe: Probe, outcome: Outcome) -> bool {
    judge(expect, &[seen("10.0.0.2:2379", probe, outcome)]).met
}

fn all_kinds() -> impl Iterator<Item = Expect> {
    let codes = Code::ALL.into_iter().map(|code| Expect::Unreachable(Some(code)));
    KINDS.into_iter().map(|(kind, _)| kind).chain(codes)
}

#[test]
fn every_expectation_is_read_back_from_its_name() {
    for kind in all_kinds() {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("lossy".parse::<Expect>().unwrap_err().contains("dead-host"));
    assert!("unreachable:nonsense".parse::<Expect>().unwrap_err().contains("admin-prohibited"));
}

#[test]
fn a_dead_host_is_silent_or_times_out_or_has_no_neighbour_but_never_refuses() {
    for errno in ["ETIMEDOUT", "EHOSTUNREACH"] {
        assert!(met(Expect::DeadHost, Probe::Connect, Outcome::errno(errno)));
    }
    assert!(met(Expect::DeadHost, Probe::Connect, Outcome::Silence));
    assert!(!met(Expect::DeadHost, Probe::Connect, Outcome::errno("ECONNREFUSED")));
    assert!(!met(Expect::DeadHost, Probe::Ping, Outcome::Answered));
}

/// comcast#67, kronosnet#178, liboping#48, gpdb#1360: a local drop makes sends fail, which no remote failure does.
#[test]
fn a_send_that_is_not_permitted_fits_no_kind_and_is_explained() {
    for kind in all_kinds() {
        for probe in [Probe::Udp, Probe::UdpRecverr, Probe::Ping] {
            let verdict = judge(kind, &[seen("10.0.0.2:1", probe, Outcome::errno("EPERM"))]);
            assert!(!verdict.met, "{kind} {probe}");
            assert!(verdict.checks[0].note.as_ref().unwrap().contains("sender's own namespace"));
        }
    }
}

#[test]
fn without_an_answer_alive_is_not_met_and_the_doubt_is_said() {
    let verdict = judge(Expect::Alive, &[seen("10.0.0.2:1", Probe::Connect, Outcome::Acknowledged)]);
    assert!(!verdict.met);
    assert!(verdict.checks[0].note.as_ref().unwrap().contains("--request"));
}

#[test]
fn a_hung_process_needs_a_question_that_stays_unanswered() {
    assert!(met(Expect::HungProcess, Probe::Connect, Outcome::Acknowledged));
    assert!(!met(Expect::HungProcess, Probe::Connect, Outcome::Connected));
    assert!(!met(Expect::HungProcess, Probe::Connect, Outcome::Answered));
}

#[test]
fn the_same_code_has_another_errno_over_ipv6() {
    let expect = Expect::Unreachable(Some(Code::AdminProhibited));
    let v4 = seen("10.0.0.2:1", Probe::Connect, Outcome::errno("EHOSTUNREACH"));
    let v6 = seen("[fd00::2]:1", Probe::Connect, Outcome::errno("EACCES"));
    assert!(judge(expect, &[v4.clone(), v6.clone()]).met);
    let swapped = Observation { outcome: v6.outcome, ..v4 };
    assert!(!judge(expect, &[swapped]).met);
}

#[test]
fn the_error_queue_tells_codes_of_one_errno_apart() {
    let mut observation = seen("10.0.0.2:1", Probe::UdpRecverr, Outcome::errno("EHOSTUNREACH"));
    observation.errors =
        vec![QueuedError { origin: "icmp".into(), kind: 3, code: 10, errno: "EHOSTUNREACH".into(), from: None }];
    assert!(judge(Expect::Unreachable(Some(Code::HostProhibited)), &[observation.clone()]).met);
    assert!(!judge(Expect::Unreachable(Some(Code::Host)), &[observation.clone()]).met);
    assert!(judge(Expect::Unreachable(None), &[observation]).met);
}

#[test]
fn an_error_on_a_connection_that_was_made_is_not_a_failed_attempt() {
    let mut observation = seen("10.0.0.2:1", Probe::Connect, Outcome::errno("ETIMEDOUT"));
    assert!(judge(Expect::DeadHost, &[observation.clone()]).met);
    observation.steps = vec![Step { at_ms: 0.1, what: What::Connected }];
    assert!(!judge(Expect::DeadHost, &[observation]).met);
}

#[test]
fn what_could_not_be_tried_neither_meets_nor_breaks_an_expectation() {
    let untried = seen("10.0.0.2:1", Probe::Ping, Outcome::Untried { why: "EPERM".into() });
    assert!(!judge(Expect::Alive, std::slice::from_ref(&untried)).met);
    let answered = seen("10.0.0.2:1", Probe::Connect, Outcome::Answered);
    assert!(judge(Expect::Alive, &[answered, untried]).met);
    assert!(!judge(Expect::Alive, &[]).met);
}

#[test]
fn what_the_probes_cannot_tell_apart_is_named_with_the_probes_that_could() {
    let verdict = judge(Expect::DeadHost, &[seen("10.0.0.2:1", Probe::Connect, Outcome::Silence)]);
    let [hush] = verdict.also_fits.as_slice() else { panic!("{verdict:#?}") };
    assert!(verdict.met);
    assert_eq!(hush.expect, Expect::Hush);
    assert_eq!(hush.told_by, [Probe::Ping, Probe::RawPing]);
    let connect = seen("10.0.0.2:1", Probe::Connect, Outcome::Silence);
    let verdict = judge(Expect::DeadHost, &[connect, seen("10.0.0.2:1", Probe::Ping, Outcome::Silence)]);
    assert!(verdict.met && verdict.also_fits.is_empty(), "{verdict:#?}");
}

#[test]
fn a_host_that_is_unreachable_at_once_is_a_routers_word_and_after_three_seconds_a_neighbours() {
    let at = |took_ms| Observation { took_ms, ..seen("10.0.0.2:1", Probe::Ping, Outcome::errno("EHOSTUNREACH")) };
    let host = Expect::Unreachable(Some(Code::Host));
    for (took_ms, router) in [(0.1, true), (3070.0, false)] {
        assert_eq!(judge(host, &[at(took_ms)]).met, router);
        assert_eq!(judge(Expect::DeadHost, &[at(took_ms)]).met, !router);
    }
}

#[test]
fn a_refusal_of_somebody_else_is_no_dead_process() {
    let mut observation = seen("10.0.0.2:1", Probe::UdpRecverr, Outcome::errno("ECONNREFUSED"));
    let from = |address: &str| QueuedError {
        origin: "icmp".into(),
        kind: 3,
        code: 3,
        errno: "ECONNREFUSED".into(),
        from: Some(address.parse().unwrap()),
    };
    observation.errors = vec![from("10.0.0.2")];
    assert!(judge(Expect::DeadProcess, &[observation.clone()]).met);
    observation.errors = vec![from("10.0.0.254")];
    assert!(!judge(Expect::DeadProcess, &[observation.clone()]).met);
    assert!(judge(Expect::Unreachable(Some(Code::Port)), &[observation]).met);
}

/// flux-core#4086: power-off was never noticed, a kill at once; the kinds must not look alike.
///
/// One pair may: the last router before a dead host reports it as unreachable.
#[test]
fn every_two_kinds_differ_in_at_least_one_probe() {
    let kinds: Vec<_> = KINDS.into_iter().map(|(kind, _)| kind).collect();
    for (index, one) in kinds.iter().enumerate() {
        for other in &kinds[index + 1..] {
            let apart = Probe::ALL.into_iter().any(|probe| {
                let theirs = allowed(*other, probe, false);
                allowed(*one, probe, false).iter().all(|outcome| !theirs.contains(outcome))
            });
            let reported = matches!((one, other), (Expect::DeadHost, Expect::Unreachable(None)));
            assert!(apart || reported, "{one} and {other} can look the same");
        }
    }
}
