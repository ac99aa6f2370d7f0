//! From the values of [`crate::rules`] to netlink: one batch a namespace, and which message is which rule.

mod batch;
mod expressions;
mod lower;
mod message;
pub(crate) mod netlink;
#[expect(unsafe_code, reason = "libnftnl is C; every call into it stands in this file")]
mod object;
mod parse;
mod sets;

pub use batch::{Builder, Finalized, Sent};
pub use message::{
    family, request_chains, request_counters, request_elements, request_flowtables, request_generation, request_rules,
    request_tables, split,
};
pub use parse::{
    BaseChainInfo, CounterInfo, ElementInfo, FlowtableInfo, TableInfo, parse_base_chain, parse_chain_type,
    parse_counter, parse_elements, parse_flowtable, parse_generation, parse_table,
};
