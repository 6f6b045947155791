//! Server-sent events: in whatever pieces a stream comes, it gives the same events, and the same error if any.
#![no_main]

use decanus_backend::sse::{Event, SseDecoder, SseError};
use libfuzzer_sys::fuzz_target;

// Eight bytes that say where to cut, then the stream.
fuzz_target!(|data: &[u8]| {
    if data.len() < 8 {
        return;
    }
    let (cuts, stream) = data.split_at(8);
    let whole = decode([stream]);
    assert_eq!(decode(stream.chunks(1)), whole);
    let mut pieces = Vec::new();
    let mut rest = stream;
    for cut in cuts.iter().cycle().take(512) {
        let (piece, after) = rest.split_at(usize::from(*cut).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    assert_eq!(decode(pieces), whole);
});

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Event>, Option<SseError>) {
    let mut decoder = SseDecoder::new();
    let mut events = Vec::new();
    for piece in pieces {
        if let Err(e) = decoder.push(piece, &mut events) {
            return (events, Some(e));
        }
    }
    match decoder.finish() {
        Ok(last) => events.extend(last),
        Err(e) => return (events, Some(e)),
    }
    (events, None)
}
