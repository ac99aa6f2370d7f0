//! libnftnl's objects with Rust's ownership: the only file that calls into C.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::ptr::NonNull;

use nftnl::nftnl_sys as sys;

/// Room for one message: its biggest attribute is a list of set elements, and no attribute exceeds 64 KiB.
const MESSAGE_ROOM: usize = 0x1_8000;

thread_local! {
    /// Where messages are made: words, since a header has to be aligned. libmnl fills all that it counts, padding too.
    static ROOM: RefCell<Vec<u32>> = RefCell::new(vec![0; MESSAGE_ROOM / 4]);
}

/// A netlink message, header and all.
pub(super) type Message = Vec<u8>;

macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $ty:ident, $alloc:ident, $free:ident, $set:ident, $set_str:ident, $build:ident) => {
        $(#[$doc])*
        pub(super) struct $name(NonNull<sys::$ty>);

        impl $name {
            pub(super) fn new() -> Self {
                // SAFETY: allocates; null means that memory is out.
                let raw = unsafe { sys::$alloc() };
                Self(NonNull::new(raw).expect("libnftnl allocates"))
            }

            #[allow(dead_code, reason = "not every object has attributes other than names")]
            /// Sets an attribute to bytes in the order that the kernel takes them; numbers in the machine's order.
            pub(super) fn data(&mut self, attr: u32, data: &[u8]) -> &mut Self {
                // SAFETY: the object lives; libnftnl copies the bytes.
                unsafe { sys::$set(self.0.as_ptr(), short(attr), data.as_ptr().cast(), long(data.len())) };
                self
            }

            #[allow(dead_code, reason = "not every object has attributes other than names")]
            pub(super) fn u32(&mut self, attr: u32, value: u32) -> &mut Self {
                self.data(attr, &value.to_ne_bytes())
            }

            pub(super) fn str(&mut self, attr: u32, value: &str) -> &mut Self {
                let value = c_string(value);
                // SAFETY: the object lives; libnftnl copies the string.
                unsafe { sys::$set_str(self.0.as_ptr(), short(attr), value.as_ptr()) };
                self
            }

            /// A message of this type about the object; `kind` is one of `NFT_MSG_*`.
            pub(super) fn message(&mut self, kind: u16, family: u8, flags: u16, seq: u32) -> Message {
                build(kind, family, flags, seq, |header| {
                    // SAFETY: the header begins a buffer with room for the biggest message; the object lives.
                    unsafe { sys::$build(header, self.0.as_ptr()) };
                })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: allocated by new, freed once.
                unsafe { sys::$free(self.0.as_ptr()) }
            }
        }
    };
}

object!(/** A table. */ Table, nftnl_table, nftnl_table_alloc, nftnl_table_free, nftnl_table_set_data, nftnl_table_set_str, nftnl_table_nlmsg_build_payload);
object!(/** A chain. */ Chain, nftnl_chain, nftnl_chain_alloc, nftnl_chain_free, nftnl_chain_set_data, nftnl_chain_set_str, nftnl_chain_nlmsg_build_payload);
object!(/** A rule. */ Rule, nftnl_rule, nftnl_rule_alloc, nftnl_rule_free, nftnl_rule_set_data, nftnl_rule_set_str, nftnl_rule_nlmsg_build_payload);
object!(/** A set. */ Set, nftnl_set, nftnl_set_alloc, nftnl_set_free, nftnl_set_set_data, nftnl_set_set_str, nftnl_set_nlmsg_build_payload);
object!(/** A named counter. */ Object, nftnl_obj, nftnl_obj_alloc, nftnl_obj_free, nftnl_obj_set_data, nftnl_obj_set_str, nftnl_obj_nlmsg_build_payload);

impl Chain {
    /// The devices that a netdev chain is hooked to.
    pub(super) fn devices(&mut self, names: &[String]) -> &mut Self {
        let names: Vec<_> = names.iter().map(|name| c_string(name)).collect();
        let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        pointers.push(std::ptr::null());
        let attr = short(sys::NFTNL_CHAIN_DEVICES);
        // SAFETY: a null-terminated array of strings, which libnftnl copies.
        unsafe { sys::nftnl_chain_set_array(self.0.as_ptr(), attr, pointers.as_mut_ptr().cast()) };
        self
    }
}

impl Rule {
    pub(super) fn push(&mut self, expr: Expr) -> &mut Self {
        // SAFETY: both live; the rule takes the expression over, so it is not freed here.
        unsafe { sys::nftnl_rule_add_expr(self.0.as_ptr(), expr.0.as_ptr()) };
        std::mem::forget(expr);
        self
    }
}

impl Set {
    pub(super) fn push(&mut self, element: Element) -> &mut Self {
        // SAFETY: both live; the set takes the element over, so it is not freed here.
        unsafe { sys::nftnl_set_elem_add(self.0.as_ptr(), element.0.as_ptr()) };
        std::mem::forget(element);
        self
    }

    /// A message about the set's elements, which have to fit into one attribute of 64 KiB.
    pub(super) fn elements_message(&mut self, kind: u16, family: u8, flags: u16, seq: u32) -> Message {
        build(kind, family, flags, seq, |header| {
            // SAFETY: the header begins a buffer with room for the biggest message; the set lives.
            unsafe { sys::nftnl_set_elems_nlmsg_build_payload(header, self.0.as_ptr()) };
        })
    }
}

/// An instruction of a rule.
pub(super) struct Expr(NonNull<sys::nftnl_expr>);

impl Expr {
    pub(super) fn new(name: &str) -> Self {
        let name = c_string(name);
        // SAFETY: allocates; null would mean that libnftnl does not know the name.
        let raw = unsafe { sys::nftnl_expr_alloc(name.as_ptr()) };
        Self(NonNull::new(raw).expect("libnftnl knows this expression"))
    }

    pub(super) fn data(self, attr: u32, data: &[u8]) -> Self {
        // SAFETY: the expression lives; libnftnl copies the bytes.
        unsafe { sys::nftnl_expr_set(self.0.as_ptr(), short(attr), data.as_ptr().cast(), long(data.len())) };
        self
    }

    pub(super) fn u32(self, attr: u32, value: u32) -> Self {
        self.data(attr, &value.to_ne_bytes())
    }

    pub(super) fn str(self, attr: u32, value: &str) -> Self {
        let value = c_string(value);
        // SAFETY: the expression lives; libnftnl copies the string.
        unsafe { sys::nftnl_expr_set_str(self.0.as_ptr(), short(attr), value.as_ptr()) };
        self
    }

    /// Puts an expression into this one, if there is one.
    pub(super) fn nested(self, attr: u32, expr: Option<Self>) -> Self {
        if let Some(expr) = expr {
            // SAFETY: both live; this expression takes the other over, so it is not freed here.
            unsafe { sys::nftnl_expr_set(self.0.as_ptr(), short(attr), expr.0.as_ptr().cast(), 0) };
            std::mem::forget(expr);
        }
        self
    }
}

impl Drop for Expr {
    fn drop(&mut self) {
        // SAFETY: allocated by new and not taken over by a rule or another expression.
        unsafe { sys::nftnl_expr_free(self.0.as_ptr()) }
    }
}

/// An element of a set.
pub(super) struct Element(NonNull<sys::nftnl_set_elem>);

impl Element {
    pub(super) fn new() -> Self {
        // SAFETY: allocates; null means that memory is out.
        let raw = unsafe { sys::nftnl_set_elem_alloc() };
        Self(NonNull::new(raw).expect("libnftnl allocates"))
    }

    pub(super) fn data(self, attr: u32, data: &[u8]) -> Self {
        // SAFETY: the element lives; libnftnl copies the bytes.
        unsafe { sys::nftnl_set_elem_set(self.0.as_ptr(), short(attr), data.as_ptr().cast(), long(data.len())) };
        self
    }
}

impl Drop for Element {
    fn drop(&mut self) {
        // SAFETY: allocated by new and not taken over by a set.
        unsafe { sys::nftnl_set_elem_free(self.0.as_ptr()) }
    }
}

/// A message without attributes: the begin or the end of a batch, or a request for everything.
pub(super) fn bare(message_type: u16, family: u8, flags: u16, seq: u32, resource: u16) -> Message {
    let mut message = build_raw(message_type, family, flags, seq, |_| {});
    // nfgenmsg follows the header of 16 bytes: family, version, resource in network order.
    message[18..20].copy_from_slice(&resource.to_be_bytes());
    message
}

fn build(kind: u16, family: u8, flags: u16, seq: u32, payload: impl FnOnce(*mut sys::libc::nlmsghdr)) -> Message {
    build_raw((super::message::NFTABLES << 8) | kind, family, flags, seq, payload)
}

fn build_raw(
    message_type: u16,
    family: u8,
    flags: u16,
    seq: u32,
    payload: impl FnOnce(*mut sys::libc::nlmsghdr),
) -> Message {
    ROOM.with_borrow_mut(|room| {
        let start: *mut u32 = room.as_mut_ptr();
        // SAFETY: the buffer has room for a header and is aligned for it.
        let header = unsafe { sys::nftnl_nlmsg_build_hdr(start.cast(), message_type, family.into(), flags, seq) };
        payload(header);
        // SAFETY: the header has been filled in above, and lies in the buffer.
        let len = unsafe { (*header).nlmsg_len } as usize;
        assert!(len <= MESSAGE_ROOM, "a message of {len} bytes fits into its buffer");
        // SAFETY: the buffer holds that many bytes, as just checked.
        let mut message = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) }.to_vec();
        // libnftnl makes every type one of nf_tables, but those that frame a batch are nfnetlink's own.
        message[4..6].copy_from_slice(&message_type.to_ne_bytes());
        message
    })
}

/// libnftnl takes as 16 bits what its header declares as plain enumerations.
fn short(attribute: u32) -> u16 {
    attribute.try_into().expect("libnftnl has few attributes")
}

fn long(len: usize) -> u32 {
    len.try_into().expect("attributes are at most 64 KiB")
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("names and comments of rules contain no NUL")
}
