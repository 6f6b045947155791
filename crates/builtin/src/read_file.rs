//! A text file, window by window.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use decanus_base::units::show_size;
use decanus_chat::Effect;
use decanus_tool::{FnTool, ToolContext, ToolError, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::place::{Place, Reach, failed, shown};
use crate::work::{self, Stop};

/// Lines that are read when nothing else is said, and the most that are.
const LINES: usize = 2_000;
const MAX_LINES: usize = 20_000;
/// Bytes of one window. Below what a result may have, so that a window is never cut a second time.
const WINDOW: usize = 80_000;
/// Bytes that are looked at to tell text from anything else.
const SNIFFED: usize = 8_192;

/// Arguments of `read_file`.
#[derive(Deserialize, JsonSchema)]
pub struct ReadFile {
    /// The file, relative to the project's folder.
    path: String,
    /// The first line to read, from 1; 1 when left out.
    #[schemars(range(min = 1))]
    offset: Option<u64>,
    /// How many lines to read; 2000 when left out.
    #[schemars(range(min = 1, max = 20_000))]
    limit: Option<u64>,
}

pub(crate) fn tool(place: Arc<Place>) -> FnTool<ReadFile> {
    FnTool::with_output(
        "read_file",
        "Reads a text file of the project, all of it or some of its lines.",
        move |args: ReadFile, cx: ToolContext| {
            let place = place.clone();
            work::blocking(cx, move |cx, stop| read(&place.reach(cx), &args, &stop))
        },
    )
    .effect(Effect::ReadOnly)
    .example("What does README.md say?", json!({"path": "README.md"}))
    .example(
        "Show me lines 100 to 120 of src/main.rs.",
        json!({"path": "src/main.rs", "offset": 100, "limit": 21}),
    )
}

fn read(reach: &Reach, args: &ReadFile, stop: &Stop) -> Result<ToolOutput, ToolError> {
    let (_, mut file, metadata) = reach.file(&args.path)?;
    let fail = |e: std::io::Error| failed(&args.path, &e);
    if let Some(kind) = not_text(&mut file).map_err(fail)? {
        let size = show_size(metadata.len());
        return Err(ToolError::argument(format!(
            "`{}` is not text: {kind}, {size}",
            shown(&args.path)
        )));
    }
    let first = args.offset.unwrap_or(1).max(1);
    let limit = usize::try_from(args.limit.unwrap_or(LINES as u64)).map_or(MAX_LINES, |l| l.clamp(1, MAX_LINES));
    let mut lines = Lines::over(file);
    let mut window = Vec::new();
    let mut taken = 0;
    let mut cut = None;
    let mut ended = false;
    while taken < limit {
        if lines.number.is_multiple_of(1_000) {
            stop.check()?;
        }
        let room = if lines.number + 1 < first {
            0
        } else {
            WINDOW - window.len()
        };
        let before = window.len();
        let Some(length) = lines.next(&mut window, room, stop).map_err(fail)? else {
            ended = true;
            break;
        };
        if lines.number < first {
            continue;
        }
        if length > (window.len() - before) as u64 {
            // A line that does not fit is left to the next window, unless it is too long for any.
            if taken == 0 {
                taken = 1;
                cut = Some(length);
            } else {
                window.truncate(before);
            }
            break;
        }
        taken += 1;
        if window.len() == WINDOW {
            break;
        }
    }
    stop.check()?;
    if taken == 0 && first > 1 {
        return Err(ToolError::argument(format!(
            "`{}` has {} lines; there is no line {first}",
            shown(&args.path),
            lines.number
        )));
    }
    let last = first + taken as u64 - 1;
    let mut output = ToolOutput::default();
    let text = String::from_utf8_lossy(&window);
    let whole_characters = if cut.is_some() {
        text.trim_end_matches('\u{fffd}')
    } else {
        &*text
    };
    if cut.is_none() && whole_characters.contains('\u{fffd}') && std::str::from_utf8(&window).is_err() {
        output
            .notes
            .push("bytes that are not UTF-8 are shown as \u{fffd}".into());
    }
    let text = whole_characters
        .strip_prefix('\u{feff}')
        .unwrap_or(whole_characters)
        .to_owned();
    if metadata.len() == 0 {
        output.notes.push("the file is empty".into());
    }
    if let Some(length) = cut {
        let length = show_size(length);
        output
            .notes
            .push(format!("line {first} has {length}; only its beginning is shown"));
    }
    let more = !ended && lines.more().map_err(fail)? || last < lines.number;
    if more {
        let next = last + 1;
        output.notes.push(format!(
            "lines {first} to {last}; there is more: go on with offset={next}"
        ));
    } else if first > 1 {
        output.notes.push(format!("lines {first} to {last}, the last one"));
    }
    output.value = text.into();
    Ok(output)
}

/// The lines of a file, of which no more than asked for is ever in memory.
struct Lines {
    reader: BufReader<File>,
    /// How many were read.
    number: u64,
}

impl Lines {
    fn over(file: File) -> Self {
        Self {
            reader: BufReader::with_capacity(64 << 10, file),
            number: 0,
        }
    }

    /// Reads a line with its end, of which `room` bytes are appended to `to`: its length, or nothing at the end.
    fn next(&mut self, to: &mut Vec<u8>, room: usize, stop: &Stop) -> std::io::Result<Option<u64>> {
        let mut length = 0_u64;
        let mut room = room;
        loop {
            let piece = self.reader.fill_buf()?;
            if piece.is_empty() || stop.is_set() {
                break;
            }
            let end = piece.iter().position(|b| *b == b'\n');
            let used = end.map_or(piece.len(), |at| at + 1);
            let kept = used.min(room);
            to.extend_from_slice(&piece[..kept]);
            room -= kept;
            length += used as u64;
            self.reader.consume(used);
            if end.is_some() {
                break;
            }
        }
        if length == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(length))
    }

    fn more(&mut self) -> std::io::Result<bool> {
        Ok(!self.reader.fill_buf()?.is_empty())
    }
}

/// What a file is, when it is not text. The file is then read from its beginning again.
fn not_text(file: &mut File) -> std::io::Result<Option<&'static str>> {
    let mut head = Vec::new();
    Read::take(&mut *file, SNIFFED as u64).read_to_end(&mut head)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(kind_of(&head))
}

/// What bytes are the beginning of, unless it is text.
pub(crate) fn kind_of(head: &[u8]) -> Option<&'static str> {
    const KINDS: [(&[u8], &str); 16] = [
        (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
        (b"\xff\xd8\xff", "a JPEG picture"),
        (b"GIF8", "a GIF picture"),
        (b"%PDF-", "a PDF document"),
        (b"PK\x03\x04", "a ZIP archive (or a document or package made as one)"),
        (b"\x1f\x8b", "gzip data"),
        (b"BZh", "bzip2 data"),
        (b"\xfd7zXZ\0", "xz data"),
        (b"\x28\xb5\x2f\xfd", "zstd data"),
        (b"\x7fELF", "a program (ELF)"),
        (b"SQLite format 3\0", "an SQLite database (sql_query reads these)"),
        (b"\x89HDF\r\n\x1a\n", "HDF5 data"),
        (b"PAR1", "Parquet data"),
        (b"GGUF", "a model (GGUF)"),
        (b"\xff\xfe", "text in UTF-16, which is not read"),
        (b"\xfe\xff", "text in UTF-16, which is not read"),
    ];
    let known = KINDS.iter().find(|(magic, _)| head.starts_with(magic));
    // Text may begin with the letters of some kinds; a NUL or a control character tells.
    let is_binary = head.contains(&0) || known.is_some_and(|(magic, _)| !magic.is_ascii());
    let only_letters = known.is_some_and(|(magic, _)| *magic == b"%PDF-");
    match known {
        Some((_, kind)) if is_binary || only_letters || head.iter().any(|b| *b < 9) => Some(kind),
        _ if is_binary => Some("binary data"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_from_the_rest() {
        for text in ["", "hello\n", "GIF8 is a word", "PAR1\n", "caf\u{e9} \u{1b}[1m"] {
            assert_eq!(kind_of(text.as_bytes()), None, "{text}");
        }
        assert_eq!(kind_of(b"caf\xe9 au lait"), None, "Latin-1 is text");
        assert_eq!(kind_of(b"\x89PNG\r\n\x1a\n\0\0"), Some("a PNG picture"));
        assert_eq!(kind_of(b"%PDF-1.7\n"), Some("a PDF document"));
        assert_eq!(kind_of(b"a\0b"), Some("binary data"));
        assert!(kind_of(b"\xff\xfeh\0").is_some_and(|k| k.contains("UTF-16")));
    }
}
