//! Lines that fit a pattern.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use decanus_chat::Effect;
use decanus_tool::{FnTool, ToolContext, ToolError, ToolOutput};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::list_files::one_line;
use crate::open;
use crate::place::{Access, Place, Reach, shown};
use crate::walk::{Walk, glob};
use crate::work::{self, Stop};

const MATCHES: usize = 100;
const MAX_MATCHES: usize = 1_000;
/// Characters of a line that are shown.
const LINE: usize = 300;
/// Bytes of a file that is searched at all, and of one line in memory.
const MAX_FILE: u64 = 50 << 20;
const MAX_LINE: usize = 16 << 20;
const TIME: Duration = Duration::from_secs(20);

/// Arguments of `search_files`.
#[derive(Deserialize, JsonSchema)]
pub struct SearchFiles {
    /// A regular expression; it is looked for line by line.
    pattern: String,
    /// The folder or file to search, relative to the project's folder; the whole project when left out.
    path: Option<String>,
    /// Only files whose name or path is of this form: `*.rs`, `src/**/*.{h,c}`.
    glob: Option<String>,
    /// Whether large and small letters are the same; false when left out.
    ignore_case: Option<bool>,
    /// Whether to search what begins with a dot and what .gitignore leaves out; false when left out.
    hidden: Option<bool>,
    /// How many lines to give; 100 when left out.
    #[schemars(range(min = 1, max = 1_000))]
    limit: Option<u64>,
}

pub(crate) fn tool(place: Arc<Place>) -> FnTool<SearchFiles> {
    FnTool::with_output(
        "search_files",
        "Searches the text files of the project for a regular expression; gives path:line:text.",
        move |args: SearchFiles, cx: ToolContext| {
            let place = place.clone();
            work::blocking(cx, move |cx, stop| search(&place.reach(cx), &args, &stop.after(TIME)))
        },
    )
    .effect(Effect::ReadOnly)
    .example("Where is parse_size defined?", json!({"pattern": "fn parse_size"}))
    .example(
        "Which Python files import numpy?",
        json!({"pattern": "^import numpy", "glob": "*.py"}),
    )
}

fn search(reach: &Reach, args: &SearchFiles, stop: &Stop) -> Result<ToolOutput, ToolError> {
    let matcher = matcher(args)?;
    let start = reach.existing(args.path.as_deref().unwrap_or("."), Access::Read)?;
    let globs = args.glob.as_deref().map(glob).transpose()?;
    let limit = usize::try_from(args.limit.unwrap_or(MATCHES as u64)).map_or(MAX_MATCHES, |l| l.clamp(1, MAX_MATCHES));
    let mut hunt = Hunt {
        searcher: SearcherBuilder::new()
            .line_number(true)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(MAX_LINE))
            .build(),
        found: Found {
            name: String::new(),
            lines: Vec::new(),
            limit,
            more: false,
            stop: stop.clone(),
        },
        searched: 0,
        skipped: 0,
    };
    if start.is_dir() {
        let walk = Walk {
            reach,
            folder: &start,
            depth: None,
            hidden: args.hidden == Some(true),
        };
        for entry in walk.entries().flatten() {
            let is_file = entry.file_type().is_some_and(|k| k.is_file());
            if is_file && globs.as_ref().is_none_or(|g| g.fits(&start, entry.path())) {
                hunt.search(&matcher, reach, entry.path());
            }
            stop.check()?;
            if hunt.found.more || stop.is_late() {
                break;
            }
        }
    } else {
        // What was named is searched, or it is said why not.
        let (_, _, metadata) = reach.file(args.path.as_deref().unwrap_or("."))?;
        if metadata.len() > MAX_FILE {
            let most = decanus_base::units::show_size(MAX_FILE);
            let name = shown(args.path.as_deref().unwrap_or("."));
            return Err(ToolError::argument(format!("`{name}` is larger than {most}")));
        }
        hunt.search(&matcher, reach, &start);
    }
    stop.check()?;
    Ok(hunt.output(stop.is_late()))
}

fn matcher(args: &SearchFiles) -> Result<RegexMatcher, ToolError> {
    let wrong = |why: &dyn std::fmt::Display| {
        let pattern = shown(&args.pattern);
        ToolError::argument(format!(
            "the pattern `{pattern}` is not a regular expression for lines: {why}"
        ))
    };
    if args.pattern.is_empty() {
        return Err(wrong(&"it is empty"));
    }
    RegexMatcherBuilder::new()
        .case_insensitive(args.ignore_case == Some(true))
        .line_terminator(Some(b'\n'))
        .size_limit(10 << 20)
        .dfa_size_limit(20 << 20)
        .build(&args.pattern)
        .map_err(|e| wrong(&e))
}

struct Hunt {
    searcher: Searcher,
    found: Found,
    searched: usize,
    skipped: usize,
}

impl Hunt {
    fn search(&mut self, matcher: &RegexMatcher, reach: &Reach, path: &Path) {
        let opened = open::regular(path).ok().filter(|(_, m)| m.len() <= MAX_FILE);
        let Some((file, _)) = opened else {
            self.skipped += 1;
            return;
        };
        self.found.name = one_line(&reach.show(path));
        match self.searcher.search_file(matcher, &file, &mut self.found) {
            Ok(()) => self.searched += 1,
            Err(_) => self.skipped += 1,
        }
    }

    fn output(self, is_late: bool) -> ToolOutput {
        let mut notes = Vec::new();
        let files = |n: usize| {
            if n == 1 {
                "1 file".to_owned()
            } else {
                format!("{n} files")
            }
        };
        if self.found.more {
            notes.push(format!(
                "only the first {}; there is more: narrow it with path or glob, or raise limit",
                self.found.limit
            ));
        }
        if is_late {
            let time = decanus_base::units::show_duration(TIME);
            notes.push(format!("stopped after {time}; not all files were searched"));
        }
        if self.found.lines.is_empty() {
            notes.push(format!("no line fits; searched {}", files(self.searched)));
        }
        if self.skipped > 0 {
            notes.push(format!("{} too large or not readable", files(self.skipped)));
        }
        ToolOutput {
            value: self.found.lines.join("\n").into(),
            notes,
            ..ToolOutput::default()
        }
    }
}

struct Found {
    name: String,
    lines: Vec<String>,
    limit: usize,
    more: bool,
    stop: Stop,
}

impl Sink for Found {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, line: &SinkMatch<'_>) -> io::Result<bool> {
        if self.lines.len() == self.limit {
            self.more = true;
            return Ok(false);
        }
        // A long line is cut before it is looked at as text: only so many bytes can matter.
        let bytes = line.bytes();
        let head = &bytes[..bytes.len().min(4 * LINE + 4)];
        let text = String::from_utf8_lossy(head);
        let text = text.trim_end_matches(['\n', '\r']);
        let number = line.line_number().unwrap_or_default();
        let shown = decanus_base::text::brief(text, LINE);
        self.lines.push(format!("{}:{number}:{shown}", self.name));
        Ok(!self.stop.is_set())
    }
}
