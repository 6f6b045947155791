//! Messages that are made of a list of blocks and are left open, so that the next turn can add to them without changing a
//! byte before it.
//!
//! What has been written says whether a message is open: a closed one ends with its list, and no block does.

use serde_json::Value;

use crate::dialect::write_json;

/// Whether what has been written ends with a message that is open.
pub fn is_open(out: &[u8]) -> bool {
    out.ends_with(b"}") && !out.ends_with(b"]}")
}

/// Closes the message that is open, if one is.
pub fn close(out: &mut Vec<u8>) {
    if is_open(out) {
        out.extend_from_slice(b"]}");
    }
}

/// Writes a block into the message that is open, else into a new one that starts with `opening`; `first` is whether no
/// message is before it. The block's last member must not be a list.
pub fn add(block: &Value, opening: &str, first: bool, out: &mut Vec<u8>) {
    if is_open(out) {
        out.push(b',');
    } else {
        if !first {
            out.push(b',');
        }
        out.extend_from_slice(opening.as_bytes());
    }
    write_json(out, block);
}
