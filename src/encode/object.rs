//! libnftnl's objects with Rust's ownership: the only file that calls into C.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;

use nftnl::nftnl_sys as sys;

/// Room for one message: its biggest attribute is a list of set elements, and no attribute exceeds 64 KiB.
const MESSAGE_ROOM: usize = 0x1_8000;

thread_local! {
    /// Where messages are made: words, since a header has to be aligned. libmnl fills all that it counts, padding too.
    static ROOM: RefCell<Vec<u32>> = RefCell::new(vec![0; MESSAGE_ROOM / 4]);
}

/// A netlink message under construction, or a received one.
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
    ROOM.with_borrow_mut(|room| build_in(room, message_type, family, flags, seq, payload))
}

fn build_in(
    room: &mut [u32],
    message_type: u16,
    family: u8,
    flags: u16,
    seq: u32,
    payload: impl FnOnce(*mut sys::libc::nlmsghdr),
) -> Message {
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

/// The table that libnftnl reads from a message.
pub(super) fn read_table(message: &[u8]) -> Option<super::TableInfo> {
    let table = Table::new();
    let raw = table.0.as_ptr();
    let aligned = align(message);
    // SAFETY: a whole message, aligned; the object lives.
    if unsafe { sys::nftnl_table_nlmsg_parse(aligned.as_ptr().cast(), raw) } < 0 {
        return None;
    }
    // SAFETY: the object lives, and so do the strings and bytes that it gives, until it is freed below.
    unsafe {
        let mut len = 0;
        let userdata = sys::nftnl_table_get_data(raw, short(sys::NFTNL_TABLE_USERDATA), &raw mut len);
        Some(super::TableInfo {
            family: u8::try_from(sys::nftnl_table_get_u32(raw, short(sys::NFTNL_TABLE_FAMILY))).ok()?,
            name: text(sys::nftnl_table_get_str(raw, short(sys::NFTNL_TABLE_NAME)))?,
            comment: super::parse::comment(bytes(userdata, len)),
            owner: sys::nftnl_table_is_set(raw, short(sys::NFTNL_TABLE_OWNER))
                .then(|| sys::nftnl_table_get_u32(raw, short(sys::NFTNL_TABLE_OWNER))),
        })
    }
}

pub(super) fn read_counter(message: &[u8]) -> Option<super::CounterInfo> {
    let object = Object::new();
    let raw = object.0.as_ptr();
    let aligned = align(message);
    // SAFETY: a whole message, aligned; the object lives.
    if unsafe { sys::nftnl_obj_nlmsg_parse(aligned.as_ptr().cast(), raw) } < 0 {
        return None;
    }
    // SAFETY: the object lives, and so do the strings that it gives, until it is freed below.
    unsafe {
        Some(super::CounterInfo {
            table: text(sys::nftnl_obj_get_str(raw, short(sys::NFTNL_OBJ_TABLE)))?,
            name: text(sys::nftnl_obj_get_str(raw, short(sys::NFTNL_OBJ_NAME)))?,
            packets: sys::nftnl_obj_get_u64(raw, short(sys::NFTNL_OBJ_CTR_PKTS)),
            bytes: sys::nftnl_obj_get_u64(raw, short(sys::NFTNL_OBJ_CTR_BYTES)),
        })
    }
}

pub(super) fn read_chain_type(message: &[u8]) -> Option<String> {
    let chain = Chain::new();
    let raw = chain.0.as_ptr();
    let aligned = align(message);
    // SAFETY: a whole message, aligned; the object and its strings live until it is freed below.
    unsafe {
        if sys::nftnl_chain_nlmsg_parse(aligned.as_ptr().cast(), raw) < 0 {
            return None;
        }
        text(sys::nftnl_chain_get_str(raw, short(sys::NFTNL_CHAIN_TYPE)))
    }
}

pub(super) fn read_base_chain(message: &[u8]) -> Option<super::BaseChainInfo> {
    let chain = Chain::new();
    let raw = chain.0.as_ptr();
    let aligned = align(message);
    // SAFETY: a whole message, aligned; the object and its strings live until it is freed below.
    unsafe {
        if sys::nftnl_chain_nlmsg_parse(aligned.as_ptr().cast(), raw) < 0
            || !sys::nftnl_chain_is_set(raw, short(sys::NFTNL_CHAIN_HOOKNUM))
        {
            return None;
        }
        Some(super::BaseChainInfo {
            family: u8::try_from(sys::nftnl_chain_get_u32(raw, short(sys::NFTNL_CHAIN_FAMILY))).ok()?,
            table: text(sys::nftnl_chain_get_str(raw, short(sys::NFTNL_CHAIN_TABLE)))?,
            name: text(sys::nftnl_chain_get_str(raw, short(sys::NFTNL_CHAIN_NAME)))?,
            hook: sys::nftnl_chain_get_u32(raw, short(sys::NFTNL_CHAIN_HOOKNUM)),
            priority: sys::nftnl_chain_get_s32(raw, short(sys::NFTNL_CHAIN_PRIO)),
        })
    }
}

/// A flowtable; it is only ever read.
struct Flowtable(NonNull<sys::nftnl_flowtable>);

impl Flowtable {
    fn new() -> Self {
        // SAFETY: allocates; null means that memory is out.
        let raw = unsafe { sys::nftnl_flowtable_alloc() };
        Self(NonNull::new(raw).expect("libnftnl allocates"))
    }
}

impl Drop for Flowtable {
    fn drop(&mut self) {
        // SAFETY: allocated by new, freed once.
        unsafe { sys::nftnl_flowtable_free(self.0.as_ptr()) }
    }
}

pub(super) fn read_flowtable(message: &[u8]) -> Option<super::FlowtableInfo> {
    let flowtable = Flowtable::new();
    let raw = flowtable.0.as_ptr();
    let aligned = align(message);
    // SAFETY: a whole message, aligned; the object and its strings live until it is freed below.
    unsafe {
        if sys::nftnl_flowtable_nlmsg_parse(aligned.as_ptr().cast(), raw) < 0 {
            return None;
        }
        let flags = short(sys::NFTNL_FLOWTABLE_FLAGS);
        Some(super::FlowtableInfo {
            table: text(sys::nftnl_flowtable_get_str(raw, short(sys::NFTNL_FLOWTABLE_TABLE)))?,
            name: text(sys::nftnl_flowtable_get_str(raw, short(sys::NFTNL_FLOWTABLE_NAME)))?,
            devices: texts(sys::nftnl_flowtable_get_array(raw, short(sys::NFTNL_FLOWTABLE_DEVICES))),
            // NFT_FLOWTABLE_HW_OFFLOAD
            hardware: sys::nftnl_flowtable_is_set(raw, flags) && sys::nftnl_flowtable_get_u32(raw, flags) & 1 != 0,
        })
    }
}

pub(super) fn read_elements(message: &[u8]) -> Vec<super::ElementInfo> {
    let set = Set::new();
    let aligned = align(message);
    let mut elements = Vec::new();
    // SAFETY: a whole message, aligned; the set owns the elements, which are only read before it is freed.
    unsafe {
        if sys::nftnl_set_elems_nlmsg_parse(aligned.as_ptr().cast(), set.0.as_ptr()) < 0 {
            return elements;
        }
        let iter = sys::nftnl_set_elems_iter_create(set.0.as_ptr());
        loop {
            let element = sys::nftnl_set_elems_iter_next(iter);
            if element.is_null() {
                break;
            }
            elements.push(read_element(element));
        }
        sys::nftnl_set_elems_iter_destroy(iter);
    }
    elements
}

/// # Safety
/// `element` is an element of a set that lives.
unsafe fn read_element(element: *mut sys::nftnl_set_elem) -> super::ElementInfo {
    let data = |attr: u32| {
        let mut len = 0;
        // SAFETY: the element lives, as the caller promises; the bytes are copied at once.
        unsafe { bytes(sys::nftnl_set_elem_get(element, short(attr), &raw mut len), len) }.to_vec()
    };
    // SAFETY: the element lives, as the caller promises.
    let number = |attr: u32| unsafe {
        sys::nftnl_set_elem_is_set(element, short(attr)).then(|| sys::nftnl_set_elem_get_u64(element, short(attr)))
    };
    // SAFETY: the element lives, as the caller promises; libnftnl must not be asked for what is not set.
    let flags = unsafe {
        let flags = short(sys::NFTNL_SET_ELEM_FLAGS);
        if sys::nftnl_set_elem_is_set(element, flags) { sys::nftnl_set_elem_get_u32(element, flags) } else { 0 }
    };
    super::ElementInfo {
        key: data(sys::NFTNL_SET_ELEM_KEY),
        key_end: data(sys::NFTNL_SET_ELEM_KEY_END),
        ends_interval: flags & 1 != 0,
        comment: super::parse::comment(&data(sys::NFTNL_SET_ELEM_USERDATA)),
        expires_ms: number(sys::NFTNL_SET_ELEM_EXPIRATION),
    }
}

/// # Safety
/// `data` is null or points to `len` bytes that live as long as the result is used.
unsafe fn bytes<'a>(data: *const c_void, len: u32) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(data.cast(), len as usize) }
}

/// # Safety
/// `string` is null or a C string.
unsafe fn text(string: *const c_char) -> Option<String> {
    // SAFETY: as the caller promises.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned())
}

/// # Safety
/// `strings` is null or an array of C strings that ends with null.
unsafe fn texts(mut strings: *const *const c_char) -> Vec<String> {
    let mut texts = Vec::new();
    if strings.is_null() {
        return texts;
    }
    // SAFETY: as the caller promises; the walk stops at the null.
    unsafe {
        while let Some(string) = text(*strings) {
            texts.push(string);
            strings = strings.add(1);
        }
    }
    texts
}

/// A copy that starts at a word, as the C side takes for granted.
fn align(message: &[u8]) -> Vec<u32> {
    let words = message.chunks(4).map(|word| {
        let mut padded = [0; 4];
        padded[..word.len()].copy_from_slice(word);
        u32::from_ne_bytes(padded)
    });
    words.collect()
}
