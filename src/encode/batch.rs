//! One transaction: building it, and knowing afterwards which message failed.

use std::collections::HashMap;

use nftnl::nftnl_sys as sys;

use super::lower::{Instr, lower};
use super::object::{self, Expr, Message, Object};
use crate::rules::{Chain, Element, Family, Hook, Key, Rule, Ruleset, Set, Span, Table};

/// `NFNL_SUBSYS_NFTABLES`.
pub(super) const NFTABLES: u16 = 10;

/// Constants of `linux/netfilter/nfnetlink.h` and `nf_tables.h`.
mod nft {
    pub(super) const BATCH_BEGIN: u16 = 0x10;
    pub(super) const BATCH_END: u16 = 0x11;
    pub(super) const NEWTABLE: u16 = 0;
    pub(super) const GETTABLE: u16 = 1;
    pub(super) const DELTABLE: u16 = 2;
    pub(super) const NEWCHAIN: u16 = 3;
    pub(super) const GETCHAIN: u16 = 4;
    pub(super) const NEWRULE: u16 = 6;
    pub(super) const NEWSET: u16 = 9;
    pub(super) const NEWSETELEM: u16 = 12;
    pub(super) const GETSETELEM: u16 = 13;
    pub(super) const DELSETELEM: u16 = 14;
    pub(super) const NEWOBJ: u16 = 18;
    pub(super) const GETOBJ: u16 = 19;
    pub(super) const TABLE_OWNER: u32 = 2;
    pub(super) const SET_INTERVAL: u32 = 0x4;
    pub(super) const SET_TIMEOUT: u32 = 0x10;
    pub(super) const SET_EVAL: u32 = 0x20;
    pub(super) const SET_CONCAT: u32 = 0x80;
    pub(super) const ELEM_INTERVAL_END: u32 = 1;
    pub(super) const OBJECT_COUNTER: u32 = 1;
}

/// `NLM_F_*` of `linux/netlink.h`.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;
const EXCL: u16 = 0x200;
const APPEND: u16 = 0x800;

/// Elements in one message: with keys of 24 bytes, ranges and comments they stay well below 64 KiB.
const ELEMENTS_AT_ONCE: usize = 200;

/// A batch that grows. Finalizing consumes it.
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

    /// Deletes a table. The kernel fails the whole batch if it is not there.
    pub fn delete_table(&mut self, family: Family, name: &str) {
        self.push(format!("delete table {} {name}", family.name()), |seq| {
            let mut table = object::Table::new();
            table.str(sys::NFTNL_TABLE_NAME, name);
            table.message(nft::DELTABLE, number(family), REQUEST, seq)
        });
    }

    /// Adds all tables of a fault. The kernel fails the whole batch if one of them is there already.
    pub fn add(&mut self, ruleset: &Ruleset) {
        for table in &ruleset.tables {
            self.add_table(table);
        }
    }

    /// Empties the set of a lease and fills it again, so that its time starts anew.
    pub fn renew(&mut self, family: Family, table: &str, set: &Set) {
        self.push(format!("flush set {} {table} {}", family.name(), set.name), |seq| {
            named_set(table, set.name).elements_message(nft::DELSETELEM, number(family), REQUEST, seq)
        });
        self.add_elements(family, table, set);
    }

    fn add_table(&mut self, table: &Table) {
        let (family, name) = (number(table.family), table.name.as_str());
        self.push(format!("table {} {name}", table.family.name()), |seq| {
            let mut object = object::Table::new();
            object.str(sys::NFTNL_TABLE_NAME, name);
            object.u32(sys::NFTNL_TABLE_FLAGS, if table.owner { nft::TABLE_OWNER } else { 0 });
            object.data(sys::NFTNL_TABLE_USERDATA, &comment(&table.comment));
            object.message(nft::NEWTABLE, family, REQUEST | CREATE | EXCL, seq)
        });
        table.counters.iter().for_each(|counter| self.add_counter(table, counter));
        table.sets.iter().for_each(|set| self.add_set(table, set));
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

    fn add_set(&mut self, table: &Table, set: &Set) {
        let meaning = format!("set {} {} {}", table.family.name(), table.name, set.name);
        // Sets of one batch are told apart by an id of ours.
        let id = u32::try_from(self.messages.len()).unwrap_or(u32::MAX);
        self.push(meaning, |seq| {
            set_object(&table.name, set, id).message(nft::NEWSET, number(table.family), REQUEST | CREATE, seq)
        });
        self.add_elements(table.family, &table.name, set);
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
            object.str(sys::NFTNL_CHAIN_TABLE, &table.name).str(sys::NFTNL_CHAIN_NAME, chain.name);
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
            object.str(sys::NFTNL_RULE_TABLE, &table.name).str(sys::NFTNL_RULE_CHAIN, chain.name);
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

/// Requests for all tables of the namespace.
pub fn request_tables() -> Vec<u8> {
    object::bare((NFTABLES << 8) | nft::GETTABLE, 0, REQUEST | DUMP, 1, 0)
}

/// Requests for all chains of the namespace.
pub fn request_chains() -> Vec<u8> {
    object::bare((NFTABLES << 8) | nft::GETCHAIN, 0, REQUEST | DUMP, 1, 0)
}

/// Requests for all named counters of a family.
pub fn request_counters(family: Family) -> Vec<u8> {
    object::bare((NFTABLES << 8) | nft::GETOBJ, number(family), REQUEST | DUMP, 1, 0)
}

/// Requests for the elements of a set.
pub fn request_elements(family: Family, table: &str, set: &str) -> Vec<u8> {
    named_set(table, set).elements_message(nft::GETSETELEM, number(family), REQUEST | DUMP, 1)
}

/// `NFPROTO_*` of a family.
fn number(family: Family) -> u8 {
    match family {
        Family::Inet => 1,
        Family::Arp => 3,
        Family::Netdev => 5,
        Family::Bridge => 7,
    }
}

/// The family with that `NFPROTO_*`, if it is one that playdead writes.
pub fn family(number_of: u8) -> Option<Family> {
    [Family::Inet, Family::Arp, Family::Netdev, Family::Bridge].into_iter().find(|f| number(*f) == number_of)
}

fn comment(text: &str) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    text.truncate(126);
    text.push(0);
    tlv(0, &text)
}

/// A type-length-value triple of nft's user data.
fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind, u8::try_from(value.len()).unwrap_or(u8::MAX)], value].concat()
}

fn named_set(table: &str, name: &str) -> object::Set {
    let mut object = object::Set::new();
    object.str(sys::NFTNL_SET_TABLE, table).str(sys::NFTNL_SET_NAME, name);
    object
}

fn set_object(table: &str, set: &Set, id: u32) -> object::Set {
    let kinds: Vec<_> = set.key.iter().map(Key::kind).collect();
    let concat = kinds.len() > 1;
    let flags = [
        (set.interval, nft::SET_INTERVAL),
        (set.timeout, nft::SET_TIMEOUT),
        (set.dynamic.is_some(), nft::SET_EVAL),
        (concat, nft::SET_CONCAT),
    ];
    let len = if concat { kinds.iter().map(|kind| kind.padded()).sum() } else { kinds[0].size() };
    let mut object = named_set(table, set.name);
    object.u32(sys::NFTNL_SET_FLAGS, flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
    object.u32(sys::NFTNL_SET_KEY_TYPE, kinds.iter().fold(0, |sum, kind| sum << 6 | kind.datatype()));
    object.u32(sys::NFTNL_SET_KEY_LEN, u32::try_from(len).unwrap_or(0));
    object.u32(sys::NFTNL_SET_ID, id);
    if concat {
        let lens: Vec<_> = kinds.iter().map(|kind| u8::try_from(kind.size()).unwrap_or(u8::MAX)).collect();
        object.data(sys::NFTNL_SET_DESC_CONCAT, &lens);
    }
    if let Some((size, timeout)) = set.dynamic {
        object.u32(sys::NFTNL_SET_DESC_SIZE, size);
        object.data(sys::NFTNL_SET_TIMEOUT, &u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).to_ne_bytes());
    }
    object.data(sys::NFTNL_SET_USERDATA, &set_userdata(set));
    object
}

/// What `nft list` needs to print a set as it was declared: the byte order of its key, and the expression of a
/// `typeof` (`EXPR_PAYLOAD` is 7, `EXPR_CONCAT` 13).
fn set_userdata(set: &Set) -> Vec<u8> {
    let number = |kind, value: u32| tlv(kind, &value.to_ne_bytes());
    let host_order = matches!(set.key[0], Key::Oif);
    let order = if set.key.len() > 1 { 0 } else { 2 - u32::from(host_order) };
    let mut userdata = number(0, order);
    if !set.is_typeof() {
        return userdata;
    }
    let payload = |key: &Key| match key {
        Key::Raw(base, bit, bits) => {
            let fields = [0, 0, *base as u32 + 1, u32::from(*bit), u32::from(*bits)];
            fields.iter().zip(0..).flat_map(|(value, kind)| number(kind, *value)).collect()
        }
        _ => Vec::new(),
    };
    let of = |key: &Key| [number(0, 7), tlv(1, &payload(key))].concat();
    let expression = match set.key.as_slice() {
        [key] => of(key),
        keys => {
            let parts: Vec<u8> = keys.iter().zip(0..).flat_map(|(key, i)| tlv(i, &of(key))).collect();
            [number(0, 13), tlv(1, &parts)].concat()
        }
    };
    userdata.extend(tlv(3, &expression));
    userdata
}

/// Usually one; a plain interval is kept by the kernel as its first value and the first value behind it.
fn element_objects(set: &Set, element: &Element) -> Vec<object::Element> {
    let first = padded(&element.key, |span| &span.first, set.key.len() > 1);
    let mut object = object::Element::new().data(sys::NFTNL_SET_ELEM_KEY, &first);
    if let Some(timeout) = element.timeout {
        let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        object = object.data(sys::NFTNL_SET_ELEM_TIMEOUT, &timeout.to_ne_bytes());
    }
    if let Some(text) = &element.comment {
        object = object.data(sys::NFTNL_SET_ELEM_USERDATA, &comment(text));
    }
    if !set.interval {
        return vec![object];
    }
    let last = padded(&element.key, |span| &span.last, set.key.len() > 1);
    if set.key.len() > 1 {
        return vec![object.data(sys::NFTNL_SET_ELEM_KEY_END, &last)];
    }
    let end = successor(&last).map(|behind| {
        let flags = nft::ELEM_INTERVAL_END.to_ne_bytes();
        object::Element::new().data(sys::NFTNL_SET_ELEM_KEY, &behind).data(sys::NFTNL_SET_ELEM_FLAGS, &flags)
    });
    [object].into_iter().chain(end).collect()
}

fn padded(spans: &[Span], value: impl Fn(&Span) -> &Vec<u8>, concat: bool) -> Vec<u8> {
    let mut key = Vec::new();
    for span in spans {
        key.extend(value(span));
        if concat {
            key.resize(key.len().next_multiple_of(4), 0);
        }
    }
    key
}

/// The next number of as many bytes; `None` behind the last.
fn successor(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut next = bytes.to_vec();
    for byte in next.iter_mut().rev() {
        let (sum, carry) = byte.overflowing_add(1);
        *byte = sum;
        if !carry {
            return Some(next);
        }
    }
    None
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

fn expression(instr: &Instr) -> Expr {
    match instr {
        Instr::Payload { base, offset, len, reg } => Expr::new("payload")
            .u32(sys::NFTNL_EXPR_PAYLOAD_BASE, *base)
            .u32(sys::NFTNL_EXPR_PAYLOAD_OFFSET, *offset)
            .u32(sys::NFTNL_EXPR_PAYLOAD_LEN, *len)
            .u32(sys::NFTNL_EXPR_PAYLOAD_DREG, *reg),
        Instr::PayloadWrite { base, offset, len, reg, csum } => Expr::new("payload")
            .u32(sys::NFTNL_EXPR_PAYLOAD_BASE, *base)
            .u32(sys::NFTNL_EXPR_PAYLOAD_OFFSET, *offset)
            .u32(sys::NFTNL_EXPR_PAYLOAD_LEN, *len)
            .u32(sys::NFTNL_EXPR_PAYLOAD_SREG, *reg)
            .u32(sys::NFTNL_EXPR_PAYLOAD_CSUM_TYPE, csum.kind)
            .u32(sys::NFTNL_EXPR_PAYLOAD_CSUM_OFFSET, csum.offset)
            .u32(sys::NFTNL_EXPR_PAYLOAD_FLAGS, csum.flags),
        Instr::Meta { key, reg } => {
            Expr::new("meta").u32(sys::NFTNL_EXPR_META_KEY, *key).u32(sys::NFTNL_EXPR_META_DREG, *reg)
        }
        Instr::MetaSet { key, reg } => {
            Expr::new("meta").u32(sys::NFTNL_EXPR_META_KEY, *key).u32(sys::NFTNL_EXPR_META_SREG, *reg)
        }
        Instr::Ct { key, direction, reg } => {
            let expr = Expr::new("ct").u32(sys::NFTNL_EXPR_CT_KEY, *key).u32(sys::NFTNL_EXPR_CT_DREG, *reg);
            direction.iter().fold(expr, |expr, direction| expr.data(sys::NFTNL_EXPR_CT_DIR, &[*direction]))
        }
        // NFT_FIB_RESULT_ADDRTYPE of NFTA_FIB_F_DADDR.
        Instr::Fib { reg } => Expr::new("fib")
            .u32(sys::NFTNL_EXPR_FIB_DREG, *reg)
            .u32(sys::NFTNL_EXPR_FIB_RESULT, 3)
            .u32(sys::NFTNL_EXPR_FIB_FLAGS, 2),
        Instr::Cmp { op, reg, data } => Expr::new("cmp")
            .u32(sys::NFTNL_EXPR_CMP_SREG, *reg)
            .u32(sys::NFTNL_EXPR_CMP_OP, *op)
            .data(sys::NFTNL_EXPR_CMP_DATA, data),
        Instr::Mask { reg, mask } => Expr::new("bitwise")
            .u32(sys::NFTNL_EXPR_BITWISE_SREG, *reg)
            .u32(sys::NFTNL_EXPR_BITWISE_DREG, *reg)
            .u32(sys::NFTNL_EXPR_BITWISE_LEN, u32::try_from(mask.len()).unwrap_or(0))
            .data(sys::NFTNL_EXPR_BITWISE_MASK, mask)
            .data(sys::NFTNL_EXPR_BITWISE_XOR, &vec![0; mask.len()]),
        // NFT_BYTEORDER_HTON of one number of four bytes.
        Instr::ToBigEndian { reg } => Expr::new("byteorder")
            .u32(sys::NFTNL_EXPR_BYTEORDER_SREG, *reg)
            .u32(sys::NFTNL_EXPR_BYTEORDER_DREG, *reg)
            .u32(sys::NFTNL_EXPR_BYTEORDER_OP, 1)
            .u32(sys::NFTNL_EXPR_BYTEORDER_LEN, 4)
            .u32(sys::NFTNL_EXPR_BYTEORDER_SIZE, 4),
        // NFT_NG_RANDOM.
        Instr::Random { reg, modulus } => Expr::new("numgen")
            .u32(sys::NFTNL_EXPR_NG_DREG, *reg)
            .u32(sys::NFTNL_EXPR_NG_MODULUS, *modulus)
            .u32(sys::NFTNL_EXPR_NG_TYPE, 1)
            .u32(sys::NFTNL_EXPR_NG_OFFSET, 0),
        // NFT_HASH_JENKINS.
        Instr::Hash { from, len, reg, modulus, seed } => Expr::new("hash")
            .u32(sys::NFTNL_EXPR_HASH_SREG, *from)
            .u32(sys::NFTNL_EXPR_HASH_DREG, *reg)
            .u32(sys::NFTNL_EXPR_HASH_LEN, *len)
            .u32(sys::NFTNL_EXPR_HASH_MODULUS, *modulus)
            .u32(sys::NFTNL_EXPR_HASH_SEED, *seed)
            .u32(sys::NFTNL_EXPR_HASH_OFFSET, 0)
            .u32(sys::NFTNL_EXPR_HASH_TYPE, 0),
        Instr::Lookup { reg, set, inverted } => Expr::new("lookup")
            .u32(sys::NFTNL_EXPR_LOOKUP_SREG, *reg)
            .str(sys::NFTNL_EXPR_LOOKUP_SET, set)
            .u32(sys::NFTNL_EXPR_LOOKUP_FLAGS, (*inverted).into()),
        Instr::Load { reg, data } => {
            Expr::new("immediate").u32(sys::NFTNL_EXPR_IMM_DREG, *reg).data(sys::NFTNL_EXPR_IMM_DATA, data)
        }
        // NFT_DYNSET_OP_UPDATE.
        Instr::Update { set, reg, timeout_ms } => Expr::new("dynset")
            .u32(sys::NFTNL_EXPR_DYNSET_SREG_KEY, *reg)
            .u32(sys::NFTNL_EXPR_DYNSET_OP, 1)
            .data(sys::NFTNL_EXPR_DYNSET_TIMEOUT, &timeout_ms.to_ne_bytes())
            .str(sys::NFTNL_EXPR_DYNSET_SET_NAME, set),
        // Packets (type 0) by the second, inverted (NFT_LIMIT_F_INV).
        Instr::Over { per_second, burst } => Expr::new("limit")
            .data(sys::NFTNL_EXPR_LIMIT_RATE, &per_second.to_ne_bytes())
            .data(sys::NFTNL_EXPR_LIMIT_UNIT, &1u64.to_ne_bytes())
            .u32(sys::NFTNL_EXPR_LIMIT_BURST, *burst)
            .u32(sys::NFTNL_EXPR_LIMIT_TYPE, 0)
            .u32(sys::NFTNL_EXPR_LIMIT_FLAGS, 1),
        Instr::Count { counter } => Expr::new("objref")
            .u32(sys::NFTNL_EXPR_OBJREF_IMM_TYPE, nft::OBJECT_COUNTER)
            .str(sys::NFTNL_EXPR_OBJREF_IMM_NAME, counter),
        Instr::Forward { reg } => Expr::new("fwd").u32(sys::NFTNL_EXPR_FWD_SREG_DEV, *reg),
        Instr::Reject { kind, code } => {
            Expr::new("reject").u32(sys::NFTNL_EXPR_REJECT_TYPE, *kind).data(sys::NFTNL_EXPR_REJECT_CODE, &[*code])
        }
        Instr::Verdict { code, chain } => {
            let expr = Expr::new("immediate")
                .u32(sys::NFTNL_EXPR_IMM_DREG, 0)
                .data(sys::NFTNL_EXPR_IMM_VERDICT, &code.to_ne_bytes());
            chain.iter().fold(expr, |expr, chain| expr.str(sys::NFTNL_EXPR_IMM_CHAIN, chain))
        }
    }
}
