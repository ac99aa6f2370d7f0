//! What playdead does inside its process, beside the transaction alone: the same messages, made before.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use playdead::encode::{Builder, Finalized, request_tables};
use playdead::kernel::netns::NetNs;
use playdead::kernel::nft::Nft;
use playdead::kernel::route;
use playdead::model::{Device, Direction, Fault, Kind, Lifetime, Proto, Target, Vantage};
use playdead::rules::{Ruleset, compile};

use crate::Extent;
use crate::contest::{Contest, Turn};
use crate::places::Places;
use crate::report::Row;

/// As the command would find it.
fn vantage(ns: &NetNs) -> Result<Vantage> {
    let interfaces = route::interfaces(ns)?;
    let lo = interfaces.iter().find(|one| one.loopback).context("no lo")?.index;
    let devices = interfaces.iter().filter(|one| one.ethernet);
    Ok(Vantage {
        devices: devices.map(|one| Device { index: one.index, name: one.name.clone() }).collect(),
        loopback: lo,
        ..Vantage::default()
    })
}

fn fault(lifetime: Lifetime) -> Result<Fault> {
    let peers = vec![Target { net: "10.99.0.2/32".parse()?, ports: None, label: None }];
    let (name, since) = ("bench".parse().map_err(anyhow::Error::msg)?, "2026-11-30T00:00:00Z".into());
    let (direction, proto) = (Direction::Both, Proto::All);
    Ok(Fault { name, kind: Kind::DeadHost, peers, with: Vec::new(), direction, proto, lifetime, since })
}

fn writing(rules: &Ruleset, lo: u32) -> Finalized {
    let mut batch = Builder::new(lo);
    batch.add(rules);
    batch.finalize()
}

fn deleting(rules: &Ruleset, lo: u32) -> Finalized {
    let mut batch = Builder::new(lo);
    rules.tables.iter().for_each(|table| batch.delete_table(table.family, &table.name));
    batch.finalize()
}

fn timed(f: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    f()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

pub(crate) fn rows(extent: Extent) -> Result<Vec<Row>> {
    let places = Places::pair("in")?;
    let ns = places.open(0)?;
    let (nft, vantage, fault) = (Arc::new(Nft::open(&ns)?), vantage(&ns)?, fault(Lifetime::Open)?);
    let lo = vantage.loopback;
    let rules = compile(&fault, &vantage);
    let (ready, gone) = (writing(&rules, lo), deleting(&rules, lo));
    let whole = || {
        let apply = timed(|| {
            nft.dump(&request_tables())?;
            nft.commit(&writing(&compile(&fault, &vantage), lo))
        })?;
        let heal = timed(|| {
            nft.dump(&request_tables())?;
            nft.commit(&deleting(&rules, lo))?;
            nft.dump(&request_tables()).map(drop)
        })?;
        Ok(vec![apply, heal])
    };
    let bare = || Ok(vec![timed(|| nft.commit(&ready))?, timed(|| nft.commit(&gone))?]);
    let mut turns: Vec<Turn> = vec![Box::new(whole), Box::new(bare)];
    let contest = Contest::hold(extent.rounds(300), &mut turns)?;
    drop(turns);
    let beside = ("the bare transaction", 1);
    let close = || {
        let nft = Nft::open(&ns)?;
        nft.commit(&ready)?;
        nft.commit(&gone)?;
        Ok(vec![timed(|| {
            drop(nft);
            Ok(())
        })?])
    };
    let waits = Contest::hold(extent.rounds(50), &mut [Box::new(close)])?;
    Ok(vec![
        Row::alone("inside: the socket closed after a deletion", waits.spread(0, 0), "ms"),
        Row::of(&contest, "inside: looked, compiled, encoded, committed", 0, 0, beside).goal(1.3),
        Row::of(&contest, "inside: looked, deleted, looked again", 1, 0, beside),
    ])
}
