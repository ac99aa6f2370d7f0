//! What playdead does inside its process, by Criterion: from words to peers, from a fault to rules, from rules to the
//! netlink batch. `scripts/bench` compares the transaction itself side by side with a bare one.

use std::net::{IpAddr, Ipv4Addr};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ipnet::IpNet;
use playdead::encode::Builder;
use playdead::model::{Device, Direction, Fault, Kind, Lifetime, PeerSpec, Proto, Target, Vantage};
use playdead::rules::compile;

const COUNTS: [u32; 4] = [10, 1000, 10_000, 100_000];

fn addresses(count: u32) -> impl Iterator<Item = Ipv4Addr> {
    (0..count).map(|number| Ipv4Addr::from(0x0a00_0001 + number))
}

fn fault(count: u32) -> Fault {
    let target = |address: Ipv4Addr| Target { net: IpNet::from(IpAddr::from(address)), ports: None, label: None };
    Fault {
        name: "bench".parse().expect("a name"),
        kind: Kind::DeadHost,
        peers: addresses(count).map(target).collect(),
        with: Vec::new(),
        direction: Direction::Both,
        proto: Proto::All,
        lifetime: Lifetime::Open,
        since: "2026-11-30T00:00:00Z".into(),
    }
}

fn vantage() -> Vantage {
    Vantage { devices: vec![Device { index: 2, name: "eth0".into() }], ..Vantage::default() }
}

fn parse(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse peers");
    for count in COUNTS {
        let words: Vec<_> = addresses(count).map(|address| format!("{address}:80-90")).collect();
        group.throughput(Throughput::Elements(count.into()));
        let parse = |words: &Vec<String>| words.iter().filter(|word| word.parse::<PeerSpec>().is_ok()).count();
        group.bench_with_input(BenchmarkId::from_parameter(count), &words, |bencher, words| {
            bencher.iter(|| parse(words));
        });
    }
    group.finish();
}

fn rules(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("compile");
    for count in COUNTS {
        let (fault, vantage) = (fault(count), vantage());
        group.throughput(Throughput::Elements(count.into()));
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| bencher.iter(|| compile(&fault, &vantage)));
    }
    group.finish();
}

fn messages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    for count in COUNTS {
        let rules = compile(&fault(count), &vantage());
        group.throughput(Throughput::Elements(count.into()));
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| {
                let mut batch = Builder::new(1);
                batch.add(&rules);
                batch.finalize().bytes.len()
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(2));
    targets = parse, rules, messages
}
criterion_main!(benches);
