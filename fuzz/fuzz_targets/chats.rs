//! Chat files: any text can be read, and what was read and printed is read as the same messages.
#![no_main]

use decanus_chat::{parse, print};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let read = parse(&text).messages;
    let printed = print(&read);
    let again = parse(&printed);
    assert_eq!(again.messages, read, "{printed}");
    assert_eq!(print(&again.messages), printed);
    assert!(
        again.open_region.is_none() && again.unclosed_tags.is_empty(),
        "{printed}"
    );
});
