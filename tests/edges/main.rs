//! Nothing leaks at the edges: what is sent before a fault is applied is answered, what is sent under it never, also
//! while one death is replaced with another, and what is sent after heal is answered again; who is not meant notices
//! nothing.
//!
//! `PLAYDEAD_EDGES=1000` makes so many applies, replaces and heals at every place instead of a few.

mod flow;
#[path = "../net/mod.rs"]
mod net;
mod rig;
mod tally;
mod tcp;
mod timeline;

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use flow::{Flow, Numbers};
use net::{At, OTHER_PORT, PORT, Segment, at_port, targets};
use rig::{Rig, bystanders, overflowed};
use tally::Tally;
use timeline::{State, Timeline};

/// How many applies, replaces and heals. With a debug build on two processors, 250 at each place took two minutes: a
/// thousand take eight.
const CYCLES: &str = "PLAYDEAD_EDGES";
const FEW: u32 = 12;
/// Datagrams a second to the peer that is made to look dead, at least, and how many are sent.
const LEAST: u32 = 5_000;
const RATE: u32 = 6_000;
/// To those who are not meant.
const BYSTANDERS: u32 = 1_000;
/// A state lasts at least so long.
const LASTING: Duration = Duration::from_millis(8);
/// Of what is wrong, at most so many are told one by one, from the first to the last.
const TOLD: usize = 10;

/// Where the rules are, and what they are about.
#[derive(Clone, Copy)]
struct Place {
    routed: bool,
    at: At,
    /// The whole host is dead and not one port, where the host dies.
    whole: bool,
}

impl Place {
    /// The line that makes this of the peer.
    fn line(self, state: State) -> &'static str {
        match (state, self.whole) {
            (State::Healthy, _) => "heal",
            (State::DeadProcess, _) => "dead-process 10.99.0.2:2379 [fd99::2]:2379 --replace",
            (State::DeadHost, true) => "dead-host 10.99.0.2 fd99::2 --replace",
            (State::DeadHost, false) => "dead-host 10.99.0.2:2379 [fd99::2]:2379 --replace",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { routed, at, whole } = self;
        let way = if *routed { "behind a router" } else { "on one segment" };
        write!(f, "rules at {at:?}, {way}, {}", if *whole { "a whole host" } else { "one port" })
    }
}

#[test]
fn no_packet_is_in_a_wrong_state_on_the_client_and_on_the_peer() {
    let places = [(At::Client, false), (At::Peer, true)];
    run_all(&places.map(|(at, whole)| Place { routed: false, at, whole }));
}

#[test]
fn no_packet_is_in_a_wrong_state_in_between() {
    run_all(&[
        Place { routed: false, at: At::Switch, whole: false },
        Place { routed: true, at: At::Router, whole: true },
    ]);
}

/// Two places at once are what two processors can probe.
static TURN: Mutex<()> = Mutex::new(());

fn run_all(places: &[Place]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let cycles = std::env::var(CYCLES).map_or(FEW, |cycles| cycles.parse().unwrap());
    let tallies: Vec<_> = thread::scope(|scope| {
        let run = |place: &Place| {
            let place = *place;
            scope.spawn(move || run(place, cycles))
        };
        let threads: Vec<_> = places.iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (place, tally) in places.iter().zip(&tallies) {
        println!("{place}: {cycles} applies, {cycles} replaces, {cycles} heals, {tally}");
    }
    for (place, tally) in places.iter().zip(tallies) {
        let (rate, wrong) = (
            tally.rate(),
            tally.wrong.iter().step_by(tally.wrong.len() / TOLD + 1).map(String::as_str).collect::<Vec<_>>(),
        );
        assert_eq!(tally.dropped, 0, "{place}: the test's sockets or this machine's queues had no room for packets");
        assert!(wrong.is_empty(), "{place}: {tally}\n{}", wrong.join("\n"));
        assert!(rate >= f64::from(LEAST), "{place}: only {rate:.0} datagrams a second");
        assert!(tally.answered > 0 && tally.refused > 0, "{place}: not all states were seen: {tally}");
    }
}

fn run(place: Place, cycles: u32) -> Tally {
    let rig = &Rig::new(place.routed);
    let (client, peer) = (&rig.segment.client(), rig.segment.netns(At::Peer));
    let echoes =
        [(&peer, PORT), (&peer, OTHER_PORT), (&rig.neighbour(), PORT)].map(|(ns, port)| flow::server(ns, port));
    let listeners = [PORT, OTHER_PORT].map(|port| tcp::listen(&peer, port));
    let probers = targets().map(|target| flow::prober(client, target));
    // Another port of a dead host is as dead as the first.
    let others = if place.whole { vec![] } else { at_port(OTHER_PORT).to_vec() };
    let beside: Vec<_> = bystanders().iter().chain(&others).map(|to| flow::prober(client, *to)).collect();
    let [done, all_done] = &[const { AtomicBool::new(false) }; 2];
    thread::scope(|scope| {
        let _ends = [done, all_done].map(OnDrop);
        let [heard, ..] = echoes.each_ref().map(|echo| scope.spawn(|| flow::echo(echo, all_done)));
        for listener in &listeners {
            scope.spawn(|| tcp::serve(listener, all_done));
        }
        let (start, overflowed_before) = (Instant::now(), overflowed());
        let subjects = Stream::start(scope, &probers, RATE, done);
        let bystanders = Stream::start(scope, &beside, BYSTANDERS, done);
        let looks = |targets: &[SocketAddr], patience| -> Vec<_> {
            let both = targets.iter().flat_map(|target| [(*target, 0), (*target, 1000)]);
            both.map(|(target, requests)| scope.spawn(move || tcp::look(client, target, requests, patience, done)))
                .collect()
        };
        let (looks_there, looks_beside) = (looks(&targets(), tcp::SILENCE), looks(&others, tcp::PATIENCE));
        let timeline = &play(&rig.segment, place, cycles);
        done.store(true, Ordering::Relaxed);
        let mut tally = Tally::over(start.elapsed());
        let (mut subjects, bystanders) = (subjects.join(), bystanders.join());
        tally.dropped = rig.dropped() + overflowed() - overflowed_before;
        all_done.store(true, Ordering::Relaxed);
        let (heard, told) = heard.join().unwrap();
        assert!(told.is_empty(), "{place}: the peer's process was told: {told:?}");
        subjects.iter_mut().zip(heard).for_each(|(flow, heard)| flow.heard = heard);
        tally.judge_flows(&subjects, timeline);
        tally.judge_bystander_flows(&bystanders, timeline);
        tally.judge_events(&joined(looks_there).concat(), timeline);
        tally.judge_bystander_events(&joined(looks_beside).concat(), timeline);
        tally
    })
}

/// Applies one death, replaces it with the other, and heals, this many times; each is the first in turn.
fn play(segment: &Segment, place: Place, cycles: u32) -> Timeline {
    let mut timeline = Timeline::default();
    sleep(LASTING);
    for cycle in 0..cycles {
        let deaths = [State::DeadHost, State::DeadProcess];
        let turn = cycle as usize % 2;
        for state in [deaths[turn], deaths[1 - turn], State::Healthy] {
            timeline.change(state, || drop(segment.playdead(place.at, place.line(state))));
            sleep(LASTING);
        }
    }
    assert_eq!(segment.listed(place.at), "");
    timeline
}

/// The threads of some sockets: who sends, and who receives of each.
struct Stream<'scope> {
    sender: ScopedJoinHandle<'scope, Vec<Flow>>,
    receivers: Vec<ScopedJoinHandle<'scope, (Numbers<()>, Numbers<()>)>>,
}

impl<'scope> Stream<'scope> {
    fn start(
        scope: &'scope Scope<'scope, '_>,
        sockets: &'scope [UdpSocket],
        rate: u32,
        done: &'scope AtomicBool,
    ) -> Self {
        let receive = |socket| scope.spawn(move || flow::receive(socket, done));
        let receivers = sockets.iter().map(receive).collect();
        Self { sender: scope.spawn(move || flow::send(sockets, rate, done)), receivers }
    }

    fn join(self) -> Vec<Flow> {
        let received = joined(self.receivers);
        let with = |(flow, (answered, refused))| Flow { answered, refused, ..flow };
        self.sender.join().unwrap().into_iter().zip(received).map(with).collect()
    }
}

/// Becomes true when dropped: a run that fails ends its threads, too.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn joined<T>(threads: Vec<ScopedJoinHandle<'_, T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}
