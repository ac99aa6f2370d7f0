//! One transaction: building it, and knowing afterwards which message failed.

use std::collections::HashMap;

use nftnl::nftnl_sys as sys;

use super::expressions::expression;
use super::lower::lower;
use super::message::{ACK, APPEND, CREATE, EXCL, NFTABLES, REQUEST, nft, number, rules_of};
use super::object::{self, Message, Object};
use super::sets::{comment, element_objects, named_set, set_object};
use crate::rules::{Chain, Family, GATE_SET, Hook, Rule, Ruleset, Set, Table};

/// Elements in one message: with keys of 24 bytes, ranges and comments they stay well below 64 KiB.
const ELEMENTS_AT_ONCE: usize = 200;

/// A batch that grows. Finalizing consumes it.
#[derive(Clone)]
pub struct Builder {
    messages: Vec<Message>,
    /// What each message writes, by its sequence number.
    meaning: HashMap<u32, String>,
    lo: u32,
}

impl Builder {
    /// An empty batch for a namespace in which `lo` has this index.
    pub fn new(lo: u32) -> Self {
        let begin = object::bare(nft::BATCH_BEGIN, 0, REQUEST, 0, NFTABLES);
        Self { messages: vec![begin], meaning: HashMap::new(), lo }
    }

    /// Makes the kernel refuse the batch (`ERESTART`) if anything has changed since it told this generation
    /// (`NFNL_BATCH_GENID`, Linux 4.10).
    pub fn only_in(&mut self, generation: u32) {
        const GENID: u16 = 1;
        let begin = &mut self.messages[0];
        begin.extend(8u16.to_ne_bytes());
        begin.extend(GENID.to_ne_bytes());
        begin.extend(generation.to_be_bytes());
        let len = u32::try_from(begin.len()).unwrap_or(u32::MAX);
        begin[..4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Deletes a table. The kernel fails the whole batch if it is not there.
    pub fn delete_table(&mut self, family: Family, name: &str) {
        self.push(format!("delete table {} {name}", family.name()), |seq| {
            let mut table = object::Table::new();
            table.str(sys::NFTNL_TABLE_NAME, name);
            table.message(nft::DELTABLE, number(family), REQUEST, seq)
        });
    }

    /// Deletes all rules of a table and nothing else of it.
    pub fn flush_table(&mut self, family: Family, name: &str) {
        self.push(format!("flush table {} {name}", family.name()), |seq| {
            rules_of(name).message(nft::DELRULE, number(family), REQUEST, seq)
        });
    }

    /// Adds all tables of a fault. The kernel fails the whole batch if one of them is there already.
    pub fn add(&mut self, ruleset: &Ruleset) {
        ruleset.tables.iter().for_each(|table| self.add_table(table, false));
    }

    /// The same with empty gates: all is there, and applies to no packet before [`Builder::open`].
    pub fn add_shut(&mut self, ruleset: &Ruleset) {
        ruleset.tables.iter().for_each(|table| self.add_table(table, true));
    }

    /// Fills the gates of a fault, from which moment a lease counts. The kernel fails the whole batch if one of its
    /// tables has gone.
    pub fn open(&mut self, ruleset: &Ruleset) {
        for table in &ruleset.tables {
            let gates = table.sets.iter().filter(|set| set.name == GATE_SET);
            gates.for_each(|gate| self.add_elements(table.family, &table.name, gate));
        }
    }

    /// Empties a set and fills it again, so that the time of its elements starts anew.
    pub fn renew(&mut self, family: Family, table: &str, set: &Set) {
        self.empty(family, table, set.name);
        self.add_elements(family, table, set);
    }

    /// Empties a set; it is empty already: nothing happens.
    pub fn empty(&mut self, family: Family, table: &str, set: &str) {
        self.push(format!("flush set {} {table} {set}", family.name()), |seq| {
            named_set(table, set).elements_message(nft::DELSETELEM, number(family), REQUEST, seq)
        });
    }

    fn add_table(&mut self, table: &Table, shut: bool) {
        let (family, name) = (number(table.family), table.name.as_str());
        self.push(format!("table {} {name}", table.family.name()), |seq| {
            let mut object = object::Table::new();
            object.str(sys::NFTNL_TABLE_NAME, name);
            object.u32(sys::NFTNL_TABLE_FLAGS, if table.owner { nft::TABLE_OWNER } else { 0 });
            object.data(sys::NFTNL_TABLE_USERDATA, &comment(&table.comment));
            object.message(nft::NEWTABLE, family, REQUEST | CREATE | EXCL, seq)
        });
        table.counters.iter().for_each(|counter| self.add_counter(table, counter));
        table.sets.iter().for_each(|set| self.add_set(table, set, !(shut && set.name == GATE_SET)));
        table.chains.iter().for_each(|chain| self.add_chain(table, chain));
        for chain in &table.chains {
            chain.rules.iter().for_each(|rule| self.add_rule(table, chain, rule));
        }
    }

    fn add_counter(&mut self, table: &Table, counter: &str) {
        self.push(format!("counter {} {} {counter}", table.family.name(), table.name), |seq| {
            let mut object = Object::new();
            object.str(sys::NFTNL_OBJ_TABLE, &table.name).str(sys::NFTNL_OBJ_NAME, counter);
            object.u32(sys::NFTNL_OBJ_TYPE, nft::OBJECT_COUNTER);
            object.data(sys::NFTNL_OBJ_CTR_PKTS, &0u64.to_ne_bytes());
            object.data(sys::NFTNL_OBJ_CTR_BYTES, &0u64.to_ne_bytes());
            object.message(nft::NEWOBJ, number(table.family), REQUEST | CREATE, seq)
        });
    }

    fn add_set(&mut self, table: &Table, set: &Set, filled: bool) {
        let meaning = format!("set {} {} {}", table.family.name(), table.name, set.name);
        // Sets of one batch are told apart by an id of ours.
        let id = u32::try_from(self.messages.len()).unwrap_or(u32::MAX);
        self.push(meaning, |seq| {
            set_object(&table.name, set, id).message(nft::NEWSET, number(table.family), REQUEST | CREATE, seq)
        });
        if filled {
            self.add_elements(table.family, &table.name, set);
        }
    }

    fn add_elements(&mut self, family: Family, table: &str, set: &Set) {
        for elements in set.elements.chunks(ELEMENTS_AT_ONCE) {
            let meaning = format!("elements of set {} {table} {}: {} ...", family.name(), set.name, elements[0]);
            self.push(meaning, |seq| {
                let mut object = named_set(table, set.name);
                for element in elements.iter().flat_map(|element| element_objects(set, element)) {
                    object.push(element);
                }
                object.elements_message(nft::NEWSETELEM, number(family), REQUEST | CREATE, seq)
            });
        }
    }

    fn add_chain(&mut self, table: &Table, chain: &Chain) {
        let hook = chain.hook.as_ref().map(|hook| format!(" {{ {hook} }}")).unwrap_or_default();
        self.push(format!("chain {} {} {}{hook}", table.family.name(), table.name, chain.name), |seq| {
            let mut object = object::Chain::new();
            object.str(sys::NFTNL_CHAIN_TABLE, &table.name).str(sys::NFTNL_CHAIN_NAME, &chain.name);
            if let Some(hook) = &chain.hook {
                base_chain(&mut object, table.family, hook);
            }
            object.message(nft::NEWCHAIN, number(table.family), REQUEST | CREATE, seq)
        });
    }

    fn add_rule(&mut self, table: &Table, chain: &Chain, rule: &Rule) {
        let lo = self.lo;
        self.push(format!("rule {} {} {} {rule}", table.family.name(), table.name, chain.name), |seq| {
            let mut object = object::Rule::new();
            object.str(sys::NFTNL_RULE_TABLE, &table.name).str(sys::NFTNL_RULE_CHAIN, &chain.name);
            for instr in lower(rule, table.family, lo) {
                object.push(expression(&instr));
            }
            object.message(nft::NEWRULE, number(table.family), REQUEST | CREATE | APPEND, seq)
        });
    }

    fn push(&mut self, meaning: String, message: impl FnOnce(u32) -> Message) {
        let seq = u32::try_from(self.messages.len()).unwrap_or(u32::MAX);
        self.meaning.insert(seq, meaning);
        self.messages.push(message(seq));
    }

    /// The batch as it is sent.
    pub fn finalize(mut self) -> Finalized {
        let last = u32::try_from(self.messages.len() - 1).unwrap_or(u32::MAX);
        if let Some(message) = self.messages.last_mut() {
            // The end of a batch is acknowledged from Linux 6.10 on only, so the last message asks for it.
            // The flags stand in bytes 6 and 7 of a netlink header.
            let flags = u16::from_ne_bytes([message[6], message[7]]) | ACK;
            message[6..8].copy_from_slice(&flags.to_ne_bytes());
        }
        self.messages.push(object::bare(nft::BATCH_END, 0, REQUEST, last + 1, NFTABLES));
        Finalized { bytes: self.messages.concat(), sent: Sent { last, meaning: self.meaning } }
    }

    /// The same with a last message that always fails: the kernel checks everything and changes nothing. All
    /// errors but that of the message with [`Sent::last`] are real.
    pub fn finalize_dry(mut self) -> Finalized {
        self.delete_table(Family::Inet, "playdead:dry:run");
        self.finalize()
    }
}

/// A batch that is ready to be sent.
pub struct Finalized {
    /// The messages, begin and end included.
    pub bytes: Vec<u8>,
    /// What they mean.
    pub sent: Sent,
}

/// What has been sent.
pub struct Sent {
    /// The sequence number of the message whose acknowledgment ends the answer.
    pub last: u32,
    meaning: HashMap<u32, String>,
}

impl Sent {
    /// What the message of this sequence number writes, as nft text.
    pub fn meaning(&self, seq: u32) -> &str {
        self.meaning.get(&seq).map_or("the transaction as a whole", String::as_str)
    }
}

fn base_chain(object: &mut object::Chain, family: Family, hook: &Hook) {
    let (kind, name, priority, devices) = hook.parts();
    let hook = match (family, name) {
        (Family::Arp, "input") | (Family::Netdev, "ingress") | (_, "prerouting") => 0,
        (Family::Arp, "output") | (Family::Netdev, "egress") | (_, "input") => 1,
        (_, "forward") => 2,
        _ => 3,
    };
    object.str(sys::NFTNL_CHAIN_TYPE, kind);
    object.u32(sys::NFTNL_CHAIN_HOOKNUM, hook);
    object.data(sys::NFTNL_CHAIN_PRIO, &priority.to_ne_bytes());
    // NF_ACCEPT
    object.u32(sys::NFTNL_CHAIN_POLICY, 1);
    if !devices.is_empty() {
        object.devices(devices);
    }
}
