//! The text of PDFs.
//!
//! lopdf reads the file and its fonts, within bounds of its own on nesting and on what a stream inflates to; here its
//! operators become lines. The order is that of the file, which is that of reading in most files.

use std::collections::BTreeMap;
use std::time::Instant;

use lopdf::content::Content;
use lopdf::{Dictionary, Document, Encoding, LoadOptions, Object, ObjectId};

use super::{Page, Pages};

/// What one stream may inflate to.
const LARGEST_STREAM: usize = 32 * 1024 * 1024;

/// Forms in forms in forms: more is a circle.
const DEEPEST: usize = 8;

/// Operators on all pages together.
const MOST_OPERATIONS: usize = 5_000_000;

/// The pages' text, a blank line between pages.
pub(super) fn read(body: &[u8], pages: &Pages, max_chars: usize, until: Option<Instant>) -> Result<Page, String> {
    let options = LoadOptions {
        max_decompressed_size: Some(LARGEST_STREAM),
        ..LoadOptions::default()
    };
    let document = Document::load_mem_with_options(body, options).map_err(|e| e.to_string())?;
    if document.is_encrypted() {
        return Err("it is encrypted".to_owned());
    }
    let ids = document.get_pages();
    let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    let numbers = pages.within(count);
    if numbers.is_empty() {
        return Err(format!("it has {count} pages, and none of those that were asked for"));
    }
    let mut writer = Writer {
        document: &document,
        until,
        operations: 0,
        text: String::new(),
        max_bytes: max_chars.saturating_mul(8),
    };
    let mut notes = Vec::new();
    for number in numbers {
        let Some(id) = ids.get(&number) else { continue };
        if writer.text.len() >= writer.max_bytes {
            break;
        }
        let before = writer.text.trim_end().len();
        if let Err(why) = writer.page(*id) {
            notes.push(format!("page {number}: {why}"));
        } else if writer.text.trim_end().len() == before {
            notes.push(format!("page {number} has no text; it may be a picture"));
        }
        writer.text.push_str("\n\n");
    }
    let (text, truncated) = super::text::tidy(&writer.text, max_chars);
    notes.truncate(20);
    Ok(Page {
        title: title(&document),
        text,
        truncated,
        page_count: Some(count),
        notes,
        ..Page::default()
    })
}

fn title(document: &Document) -> Option<String> {
    let info = document.trailer.get(b"Info").ok()?;
    let info = document.dereference(info).ok()?.1.as_dict().ok()?;
    let title = lopdf::decode_text_string(info.get(b"Title").ok()?).ok()?;
    let (title, _) = super::text::tidy(&title, 1000);
    (!title.is_empty()).then_some(title)
}

struct Writer<'a> {
    document: &'a Document,
    until: Option<Instant>,
    operations: usize,
    text: String,
    /// More than this much text is cut anyway.
    max_bytes: usize,
}

type Fonts<'a> = BTreeMap<Vec<u8>, Encoding<'a>>;

impl<'a> Writer<'a> {
    fn page(&mut self, id: ObjectId) -> Result<(), String> {
        let fonts = self.document.get_page_fonts(id).map_err(|e| e.to_string())?;
        let fonts = self.encodings(fonts);
        let content = self
            .document
            .get_page_content_with_limit(id, LARGEST_STREAM)
            .map_err(|e| e.to_string())?;
        let resources = self.document.get_page_resources(id).ok();
        let resources = resources.and_then(|(own, inherited)| {
            own.or_else(|| inherited.first().and_then(|id| self.document.get_dictionary(*id).ok()))
        });
        self.content(&content, &fonts, resources, 0)
    }

    fn encodings(&self, fonts: BTreeMap<Vec<u8>, &'a Dictionary>) -> Fonts<'a> {
        let encoding = |font: &'a Dictionary| font.get_font_encoding_with_limit(self.document, LARGEST_STREAM).ok();
        fonts
            .into_iter()
            .filter_map(|(name, font)| Some((name, encoding(font)?)))
            .collect()
    }

    fn content(
        &mut self,
        content: &[u8],
        fonts: &Fonts<'a>,
        resources: Option<&'a Dictionary>,
        depth: usize,
    ) -> Result<(), String> {
        let content = Content::decode(content).map_err(|e| e.to_string())?;
        let mut encoding = None;
        let mut height = None;
        for operation in &content.operations {
            self.operations += 1;
            if self.operations > MOST_OPERATIONS || self.text.len() >= self.max_bytes {
                return Ok(());
            }
            if self.operations.is_multiple_of(1024) && self.until.is_some_and(|until| Instant::now() > until) {
                return Err("it takes too long to read".to_owned());
            }
            let operands = &operation.operands;
            match operation.operator.as_str() {
                "Tf" => {
                    encoding = operands
                        .first()
                        .and_then(|f| f.as_name().ok())
                        .and_then(|name| fonts.get(name))
                }
                "Tj" => self.show(operands, encoding),
                "TJ" => self.show(operands, encoding),
                "'" => {
                    self.line();
                    self.show(operands, encoding);
                }
                "\"" => {
                    self.line();
                    self.show(operands.get(2..).unwrap_or_default(), encoding);
                }
                "T*" | "ET" => self.line(),
                "Td" | "TD" => match operands.get(1).and_then(|y| y.as_float().ok()) {
                    Some(y) if y.abs() > 0.5 => self.line(),
                    _ => self.gap(),
                },
                "Tm" => {
                    let y = operands.get(5).and_then(|y| y.as_float().ok());
                    match (y, height) {
                        (Some(new), Some(old)) if f32::abs(new - old) <= 0.5 => self.gap(),
                        _ => self.line(),
                    }
                    height = y;
                }
                "Do" => {
                    let name = operands.first().and_then(|n| n.as_name().ok());
                    if let (Some(name), Some(resources)) = (name, resources)
                        && depth < DEEPEST
                    {
                        self.form(name, resources, depth)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A piece of content that pages share.
    fn form(&mut self, name: &[u8], resources: &'a Dictionary, depth: usize) -> Result<(), String> {
        let document = self.document;
        let dictionary = |object: &'a Object| document.dereference(object).ok().and_then(|(_, o)| o.as_dict().ok());
        let stream = resources
            .get(b"XObject")
            .ok()
            .and_then(dictionary)
            .and_then(|forms| forms.get(name).ok());
        let stream = stream
            .and_then(|s| document.dereference(s).ok())
            .and_then(|(_, o)| o.as_stream().ok());
        let Some(stream) = stream.filter(|s| {
            s.dict
                .get(b"Subtype")
                .and_then(Object::as_name)
                .is_ok_and(|n| n == b"Form")
        }) else {
            return Ok(());
        };
        let own = stream
            .dict
            .get(b"Resources")
            .ok()
            .and_then(dictionary)
            .unwrap_or(resources);
        let fonts = own.get(b"Font").ok().and_then(dictionary);
        let fonts = fonts.into_iter().flat_map(Dictionary::iter);
        let fonts = fonts
            .filter_map(|(name, font)| Some((name.clone(), dictionary(font)?)))
            .collect();
        let fonts = self.encodings(fonts);
        let content = stream
            .decompressed_content_with_limit(LARGEST_STREAM)
            .map_err(|e| e.to_string())?;
        self.content(&content, &fonts, Some(own), depth + 1)
    }

    fn show(&mut self, operands: &[Object], encoding: Option<&Encoding<'a>>) {
        for operand in operands {
            match operand {
                Object::String(bytes, _) => {
                    let text = match encoding {
                        Some(encoding) => Document::decode_text(encoding, bytes).ok(),
                        None => Some(bytes.iter().filter(|b| b.is_ascii()).map(|b| char::from(*b)).collect()),
                    };
                    self.text.push_str(&text.unwrap_or_default());
                }
                Object::Array(items) => self.show_pieces(items, encoding),
                _ => {}
            }
        }
    }

    fn show_pieces(&mut self, items: &[Object], encoding: Option<&Encoding<'a>>) {
        for item in items {
            match item {
                Object::String(..) => self.show(std::slice::from_ref(item), encoding),
                // Thousandths of the font's size; to the right is negative. A space is about 250 wide.
                other => {
                    if other.as_float().is_ok_and(|width| width < -180.0) {
                        self.gap();
                    }
                }
            }
        }
    }

    fn line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }

    fn gap(&mut self) {
        if !self.text.ends_with([' ', '\n']) {
            self.text.push(' ');
        }
    }
}
