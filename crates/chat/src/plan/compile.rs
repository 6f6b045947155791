//! One file after the other: imports, what clears, and the files that a chat shows the model.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::lookup::{Found, Lookup, MAX_CHAT, MAX_FILE, Place, Source, read_text, real_of, shorten};
use super::{Finding, Severity, element};
use crate::call::{FunctionCall, FunctionCallOutput};
use crate::file::load;
use crate::message::{Message, Role};

/// Imports inside imports.
pub const MAX_DEPTH: usize = 1000;
/// Files that one chat may bring in, and their bytes in all: files that import others twice each multiply.
const MAX_FILES: usize = 10_000;
const MAX_BYTES: u64 = 256 << 20;

/// A message and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub message: Message,
    pub place: Place,
    /// Whether a later `clear_tools` took away the tools that this message declares.
    pub without_tools: bool,
}

/// What goes on while a chat and all it imports are compiled.
pub(super) struct Compiler {
    lookup: Lookup,
    pub findings: Vec<Finding>,
    /// Paths that the chat itself grants.
    pub granted: Vec<(PathBuf, bool)>,
    /// Ids of calls that were cleared: their outputs are no damage.
    pub cleared: HashSet<String>,
    /// The chats that are being compiled, outermost first: path without links, and name.
    open: Vec<(PathBuf, String)>,
    files: usize,
    bytes: u64,
}

impl Compiler {
    pub fn new(lookup: &Lookup) -> Self {
        Self {
            lookup: lookup.clone(),
            findings: Vec::new(),
            granted: Vec::new(),
            cleared: HashSet::new(),
            open: Vec::new(),
            files: 0,
            bytes: 0,
        }
    }

    pub fn report(&mut self, place: &Place, severity: Severity, message: impl Into<String>) {
        let mut message = message.into();
        let chain = place.chain();
        if !chain.is_empty() {
            message.push_str(&format!(" (imported by {chain})"));
        }
        self.findings.push(Finding {
            file: place.source.path.clone(),
            shown: place.source.shown.clone(),
            line: place.line,
            severity,
            message,
        });
    }

    /// The messages of a chat, with imports replaced, what was cleared left out, and files read.
    pub fn compile(&mut self, messages: Vec<Message>, source: &Arc<Source>) -> Vec<Placed> {
        let identity = source.path.as_deref().map(real_of).unwrap_or_default();
        self.open.push((identity, source.shown.clone()));
        let begin = messages
            .iter()
            .rposition(|m| m.role == Role::Clear)
            .map_or(0, |at| at + 1);
        if let Some(clear) = begin.checked_sub(1).map(|at| &messages[at])
            && clear.content.contains('\n')
        {
            let place = self.place(source, clear);
            let text = "the text below `clear:` belongs to it and is not sent; begin it with `user:`";
            self.report(&place, Severity::Warning, text);
        }
        let messages: Vec<Message> = messages.into_iter().skip(begin).collect();
        if source.parent.is_none() {
            messages.iter().for_each(|m| self.grant(m, source));
        }
        // What stands above the last message that clears something is left out as it comes, whoever clears it once more.
        let last = |role: Role| {
            messages
                .iter()
                .rposition(|m| m.role == role && m.content.trim() != "false")
                .unwrap_or(0)
        };
        let (tools, calls) = (last(Role::ClearTools), last(Role::ClearCalls));
        let associations = last(Role::ClearAssociations);
        let mut out: Vec<Placed> = Vec::new();
        for (at, message) in messages.into_iter().enumerate() {
            let place = self.place(source, &message);
            let before = out.len();
            match message.role {
                Role::Import | Role::Continue | Role::Last => self.import(&message, place, &mut out),
                Role::Skip | Role::ClearTools | Role::ClearCalls | Role::ClearAssociations => {}
                Role::File => match self.text_of(&message.content, &place) {
                    Ok(text) => out.push(user(element::file(message.content.trim(), &text), place)),
                    Err(text) => self.report(&place, Severity::Error, text),
                },
                Role::Directory => self.directory(&message, &place, &mut out),
                Role::AllowPath | Role::AllowReadPath => {
                    if source.parent.is_some() {
                        self.grant_in_import(&message, &place);
                    }
                }
                // An empty utterance says nothing; an empty word that steers may well steer.
                role if role.is_utterance() && message.content.is_empty() => {}
                _ => out.push(Placed {
                    message,
                    place,
                    without_tools: false,
                }),
            }
            let mut kept = before;
            for new in before..out.len() {
                if at < tools {
                    out[new].without_tools = true;
                }
                let cleared = match out[new].message.role {
                    Role::Tool | Role::Mcp | Role::Kb => at < tools,
                    Role::Association => at < associations,
                    _ => at < calls && !keep_unless_call(&out[new].message, &mut self.cleared),
                };
                if !cleared {
                    out.swap(kept, new);
                    kept += 1;
                }
            }
            out.truncate(kept);
        }
        self.clean_roles(&mut out);
        self.open.pop();
        out
    }

    fn place(&self, source: &Arc<Source>, message: &Message) -> Place {
        Place {
            source: source.clone(),
            line: message.line.unwrap_or(0),
        }
    }

    /// `clean_role: ROLE` drops the messages of a role, wherever in the file they stand.
    fn clean_roles(&mut self, out: &mut Vec<Placed>) {
        let mut roles = Vec::new();
        let mut wrong = Vec::new();
        out.retain(|p| {
            if !matches!(p.message.role, Role::CleanRole | Role::ClearRole) {
                return true;
            }
            match Role::from_word(p.message.content.trim()) {
                Some(role) => roles.push(role),
                None => wrong.push((p.place.clone(), p.message.clone())),
            }
            false
        });
        for (place, message) in wrong {
            let word = message.content.trim();
            let guess = decanus_base::names::did_you_mean(word, Role::ALL.iter().map(|r| r.as_str()));
            let text = format!("{}: there is no role `{word}`{guess}", message.role);
            self.report(&place, Severity::Error, text);
        }
        let calls = [Role::FunctionCall, Role::FunctionCallOutput];
        if calls.iter().any(|role| roles.contains(role)) {
            roles.extend(calls);
        }
        out.retain(|p| !roles.contains(&p.message.role));
    }

    // Imports ---------------------------------------------------------------------------------------------------

    fn import(&mut self, message: &Message, place: Place, out: &mut Vec<Placed>) {
        let written = message.content.trim();
        let compiled = match self.imported(written, &place) {
            Ok(compiled) => compiled,
            Err(text) => return self.report(&place, Severity::Error, text),
        };
        match message.role {
            Role::Import => {
                let kept = compiled
                    .into_iter()
                    .filter(|p| p.message.role != Role::PreviousResponseId);
                out.extend(kept);
            }
            role => {
                let mut said = compiled.into_iter().filter(|p| {
                    let counts = p.message.role.is_utterance()
                        || matches!(
                            p.message.role,
                            Role::Task
                                | Role::InlineTask
                                | Role::ExecTask
                                | Role::Job
                                | Role::InlineJob
                                | Role::Step
                                | Role::Image
                                | Role::Pdf
                        )
                        || (role == Role::Continue && p.message.role == Role::PreviousResponseId);
                    counts && !p.message.content.trim().is_empty()
                });
                match said.next_back() {
                    Some(last) => out.push(last),
                    None => self.report(&place, Severity::Error, format!("Nothing to continue in {written}")),
                }
            }
        }
    }

    fn imported(&mut self, written: &str, place: &Place) -> Result<Vec<Placed>, String> {
        if is_url(written) {
            return Err(format!("import of a URL is refused: {written}"));
        }
        let found = self.find(written, &place.source.dir, "Import not found")?;
        if let Some(at) = self.open.iter().position(|(open, _)| *open == found.real) {
            let mut cycle: Vec<String> = self.open[at..].iter().map(|(_, shown)| shown.clone()).collect();
            cycle.push(self.open[at].1.clone());
            return Err(format!("Import cycle: {}", shorten(&cycle, 12).join(" -> ")));
        }
        if self.open.len() > MAX_DEPTH {
            return Err(format!("{written}: more than {MAX_DEPTH} imports inside each other"));
        }
        let text = self.read(&found, written, MAX_CHAT)?;
        let source = self
            .lookup
            .imported(&found.path, Some((place.source.clone(), place.line)));
        let loaded = load(&text);
        drop(text);
        for problem in loaded.parsed.problems {
            let place = Place {
                source: source.clone(),
                line: problem.line,
            };
            let severity = if problem.error {
                Severity::Damage
            } else {
                Severity::Warning
            };
            self.report(&place, severity, problem.message);
        }
        Ok(self.compile(loaded.parsed.messages, &source))
    }

    // Files -----------------------------------------------------------------------------------------------------

    fn find(&self, written: &str, dir: &Path, missing: &str) -> Result<Found, String> {
        if written.is_empty() {
            return Err("it takes a path".into());
        }
        self.lookup
            .find(written, dir)
            .map_err(|why| why.unwrap_or_else(|| format!("{missing}: {written}")))
    }

    fn read(&mut self, found: &Found, written: &str, most: u64) -> Result<String, String> {
        self.files += 1;
        if self.files > MAX_FILES {
            return Err(format!("{written}: the chat brings in more than {MAX_FILES} files"));
        }
        let text = read_text(found, most).map_err(|why| format!("{written} {why}"))?;
        self.bytes += text.len() as u64;
        if self.bytes > MAX_BYTES {
            let most = decanus_base::units::show_size(MAX_BYTES);
            return Err(format!("{written}: the files of the chat hold more than {most} in all"));
        }
        Ok(text)
    }

    fn text_of(&mut self, written: &str, place: &Place) -> Result<String, String> {
        let written = written.trim();
        if is_url(written) {
            return Err(format!("a file from a URL is refused: {written}"));
        }
        let found = self.find(written, &place.source.dir, "File not found")?;
        if found.real.is_dir() {
            return Err(format!(
                "{written} is a folder; `directory: {written}` shows all files in it"
            ));
        }
        self.read(&found, written, MAX_FILE)
    }

    fn directory(&mut self, message: &Message, place: &Place, out: &mut Vec<Placed>) {
        let written = message.content.trim();
        let found = match self.find(written, &place.source.dir, "Directory not found") {
            Ok(found) if found.real.is_dir() => found,
            Ok(_) => return self.report(place, Severity::Error, format!("{written} is not a folder")),
            Err(text) => return self.report(place, Severity::Error, text),
        };
        let mut members = Vec::new();
        if let Err(e) = self.members(&found.real, &mut members) {
            return self.report(place, Severity::Error, format!("{written}: {e}"));
        }
        members.sort();
        for path in members {
            let inside = path.strip_prefix(&found.real).unwrap_or(&path);
            let name = format!("{}/{}", written.trim_end_matches('/'), inside.display());
            let real = real_of(&path);
            if !self.lookup.may_read(&real) {
                let text = format!("{name} is left out: it leads outside the project and the allowed paths");
                self.report(place, Severity::Warning, text);
                continue;
            }
            match self.read(&Found { path, real }, &name, MAX_FILE) {
                Ok(text) => out.push(user(element::file(&name, &text), place.clone())),
                Err(why) if self.files <= MAX_FILES && self.bytes <= MAX_BYTES => {
                    self.report(place, Severity::Warning, format!("left out: {why}"));
                }
                Err(why) => return self.report(place, Severity::Error, why),
            }
        }
    }

    /// The files below a folder, without hidden ones; links to folders are not followed.
    fn members(&self, dir: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
        let mut open = vec![dir.to_owned()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(&dir)? {
                let entry = entry?;
                let hidden = entry.file_name().to_string_lossy().starts_with('.');
                if hidden {
                    continue;
                }
                if entry.file_type()?.is_dir() {
                    open.push(entry.path());
                } else if entry.path().is_file() {
                    found.push(entry.path());
                }
                if found.len() > MAX_FILES {
                    return Err(std::io::Error::other(format!("it holds more than {MAX_FILES} files")));
                }
            }
        }
        Ok(())
    }

    /// The path of a picture or document, absolute; an address stays as it is.
    pub fn media(&mut self, written: &str, place: &Place) -> Option<String> {
        if written.starts_with("http://") || written.starts_with("https://") {
            return Some(written.to_owned());
        }
        match self.find(written, &place.source.dir, "File not found") {
            Ok(found) if found.real.is_file() => Some(found.real.display().to_string()),
            Ok(_) => {
                self.report(place, Severity::Error, format!("{written} is not a file"));
                None
            }
            Err(text) => {
                self.report(place, Severity::Error, text);
                None
            }
        }
    }

    /// The text of a file that a setting names, if there is such a file.
    pub fn setting_file(&mut self, written: &str, place: &Place) -> Option<Result<String, String>> {
        match self.lookup.find(written, &place.source.dir) {
            Err(None) => None,
            Err(Some(why)) => Some(Err(why)),
            Ok(found) => Some(self.read(&found, written, MAX_FILE)),
        }
    }

    // Permissions -----------------------------------------------------------------------------------------------

    fn grant(&mut self, message: &Message, source: &Arc<Source>) {
        let write = match message.role {
            Role::AllowPath => true,
            Role::AllowReadPath => false,
            _ => return,
        };
        let place = self.place(source, message);
        let written = message.content.trim();
        if written.is_empty() || written.contains('\n') {
            return self.report(&place, Severity::Error, format!("{} takes one path", message.role));
        }
        let path = real_of(&source.dir.join(written));
        if !self.lookup.named_by_user {
            return self.grant_in_import(message, &place);
        }
        if !path.exists() {
            self.report(&place, Severity::Warning, format!("{written} does not exist"));
        }
        self.lookup.readable.push(path.clone());
        self.granted.push((path, write));
    }

    /// Only the chat that the user named can open paths; elsewhere a path that is open already is no fault.
    fn grant_in_import(&mut self, message: &Message, place: &Place) {
        let path = real_of(&place.source.dir.join(message.content.trim()));
        if !self.lookup.may_read(&path) {
            let text = format!("{}: only the chat that was named itself can allow paths", message.role);
            self.report(place, Severity::Error, text);
        }
    }
}

fn user(content: String, place: Place) -> Placed {
    let line = Some(place.line);
    Placed {
        message: Message {
            line,
            ..Message::user(content)
        },
        place,
        without_tools: false,
    }
}

fn keep_unless_call(message: &Message, cleared: &mut HashSet<String>) -> bool {
    match message.role {
        Role::FunctionCall => {
            cleared.extend(FunctionCall::from_message(message).map(|c| c.id));
            false
        }
        Role::FunctionCallOutput => {
            // An output that stands below the `clear_calls` must still be seen as cleared; one above goes with it.
            if let Ok(output) = FunctionCallOutput::from_message(message) {
                cleared.remove(&output.id);
            }
            false
        }
        Role::Provider | Role::McpCall => false,
        _ => true,
    }
}

fn is_url(text: &str) -> bool {
    text.split_once("://")
        .is_some_and(|(scheme, _)| !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+'))
}
