//! From instructions to libnftnl's expressions.

use nftnl::nftnl_sys as sys;

use super::lower::Instr;
use super::message::nft::OBJECT_COUNTER;
use super::object::Expr;
use crate::rules::Rate;

/// `NFT_DYNSET_OP_UPDATE`.
const UPDATE: u32 = 1;
/// `NFT_DYNSET_OP_DELETE` (Linux 5.4).
const DELETE: u32 = 2;

/// As libnftnl takes it.
pub(super) fn expression(instr: &Instr) -> Expr {
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
        Instr::Mask { reg, mask, xor } => Expr::new("bitwise")
            .u32(sys::NFTNL_EXPR_BITWISE_SREG, *reg)
            .u32(sys::NFTNL_EXPR_BITWISE_DREG, *reg)
            .u32(sys::NFTNL_EXPR_BITWISE_LEN, u32::try_from(mask.len()).unwrap_or(0))
            .data(sys::NFTNL_EXPR_BITWISE_MASK, mask)
            .data(sys::NFTNL_EXPR_BITWISE_XOR, xor),
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
        Instr::Find { reg, map } => Expr::new("lookup")
            .u32(sys::NFTNL_EXPR_LOOKUP_SREG, *reg)
            .u32(sys::NFTNL_EXPR_LOOKUP_DREG, *reg)
            .str(sys::NFTNL_EXPR_LOOKUP_SET, map),
        Instr::Load { reg, data } => {
            Expr::new("immediate").u32(sys::NFTNL_EXPR_IMM_DREG, *reg).data(sys::NFTNL_EXPR_IMM_DATA, data)
        }
        Instr::Update { set, reg, timeout_ms, over } => dynamic(set, *reg, UPDATE)
            .data(sys::NFTNL_EXPR_DYNSET_TIMEOUT, &timeout_ms.to_ne_bytes())
            .nested(sys::NFTNL_EXPR_DYNSET_EXPR, over.map(limit)),
        Instr::Learn { map, reg, data, timeout_ms } => dynamic(map, *reg, UPDATE)
            .u32(sys::NFTNL_EXPR_DYNSET_SREG_DATA, *data)
            .data(sys::NFTNL_EXPR_DYNSET_TIMEOUT, &timeout_ms.to_ne_bytes()),
        Instr::Forget { map, reg, data } => dynamic(map, *reg, DELETE).u32(sys::NFTNL_EXPR_DYNSET_SREG_DATA, *data),
        Instr::Count { counter } => Expr::new("objref")
            .u32(sys::NFTNL_EXPR_OBJREF_IMM_TYPE, OBJECT_COUNTER)
            .str(sys::NFTNL_EXPR_OBJREF_IMM_NAME, counter),
        Instr::Forward { reg } => Expr::new("fwd").u32(sys::NFTNL_EXPR_FWD_SREG_DEV, *reg),
        Instr::Duplicate { reg } => Expr::new("dup").u32(sys::NFTNL_EXPR_DUP_SREG_ADDR, *reg),
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

fn dynamic(set: &str, reg: u32, op: u32) -> Expr {
    Expr::new("dynset")
        .u32(sys::NFTNL_EXPR_DYNSET_SREG_KEY, reg)
        .u32(sys::NFTNL_EXPR_DYNSET_OP, op)
        .str(sys::NFTNL_EXPR_DYNSET_SET_NAME, set)
}

/// Packets (type 0) by the second or day, inverted (`NFT_LIMIT_F_INV`).
fn limit(rate: Rate) -> Expr {
    Expr::new("limit")
        .data(sys::NFTNL_EXPR_LIMIT_RATE, &rate.packets.to_ne_bytes())
        .data(sys::NFTNL_EXPR_LIMIT_UNIT, &rate.per.seconds().to_ne_bytes())
        .u32(sys::NFTNL_EXPR_LIMIT_BURST, rate.burst)
        .u32(sys::NFTNL_EXPR_LIMIT_TYPE, 0)
        .u32(sys::NFTNL_EXPR_LIMIT_FLAGS, 1)
}
