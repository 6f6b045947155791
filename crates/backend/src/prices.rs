//! What tokens cost: the table that comes with decanus, and those of the project and of the user.
//!
//! A table is text with tabs between the columns `provider model above input output cache_read cache_write`. `provider` is
//! the host of the endpoint's URL (with its port where it has one), `bedrock`, or `*`; prices are for a million tokens. A
//! row whose `above` is not 0 holds for prompts of more tokens than that. So a server of one's own that calls its model
//! like a provider's costs nothing.

use std::path::{Path, PathBuf};

use reqwest::Url;

use crate::profile::{LongPrices, Prices, Profile};

/// Written by scripts/prices.py.
const BUILT_IN: &str = include_str!("prices.tsv");
const COLUMNS: &str = "provider\tmodel\tabove\tinput\toutput\tcache_read\tcache_write";

/// A table that can't be used, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {message}", file = .file.display())]
pub struct PriceError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

/// The prices of an endpoint's model: of the first of these files that has it, else of the table that comes with decanus.
/// A file that is not there has none.
///
/// # Errors
/// A file that can't be read or has a line that is no price.
pub fn find(profile: &Profile, files: &[PathBuf]) -> Result<Option<Prices>, PriceError> {
    let provider = provider(profile);
    for file in files {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(fault(file, 1, error.to_string())),
        };
        let found = look_up(&text, &provider, &profile.model);
        if let Some(prices) = found.map_err(|(line, message)| fault(file, line, message))? {
            return Ok(Some(prices));
        }
    }
    let found = look_up(BUILT_IN, &provider, &profile.model);
    found.map_err(|(line, message)| fault(Path::new("prices.tsv"), line, message))
}

fn fault(file: &Path, line: usize, message: String) -> PriceError {
    PriceError {
        file: file.to_owned(),
        line,
        message,
    }
}

fn provider(profile: &Profile) -> String {
    let url = Url::parse(&profile.url);
    let host = url.as_ref().ok().and_then(Url::host_str).unwrap_or_default();
    if profile.backend == "bedrock" && (profile.url.is_empty() || host.ends_with(".amazonaws.com")) {
        return "bedrock".into();
    }
    let Ok(url) = &url else {
        return String::new();
    };
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// The prices that a table has for a model, or a line that is wrong and why. Every line is checked.
fn look_up(text: &str, provider: &str, model: &str) -> Result<Option<Prices>, (usize, String)> {
    // Providers add the date of a version; the plain name costs the same unless a row says otherwise.
    let plain = without_date(model);
    let (mut exact, mut undated) = (None, None);
    let mut head = false;
    for (n, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if !std::mem::replace(&mut head, true) {
            if line != COLUMNS {
                let columns = COLUMNS.replace('\t', " ");
                return Err((n + 1, format!("expected the columns {columns}, with tabs between them")));
            }
            continue;
        }
        let row = Row::read(line).map_err(|message| (n + 1, message))?;
        if row.provider != "*" && !row.provider.eq_ignore_ascii_case(provider) {
            continue;
        }
        if row.model == model {
            row.add(&mut exact);
        } else if Some(row.model) == plain {
            row.add(&mut undated);
        }
    }
    Ok(exact.or(undated))
}

/// A model's name without `-2025-08-07`, `-20250929` or `-latest` at its end.
fn without_date(model: &str) -> Option<&str> {
    if let Some(plain) = model.strip_suffix("-latest") {
        return Some(plain);
    }
    let digits = |text: &str, n: usize| text.len() == n && text.bytes().all(|b| b.is_ascii_digit());
    let (rest, last) = model.rsplit_once('-')?;
    if digits(last, 8) {
        return Some(rest);
    }
    let (rest, month) = rest.rsplit_once('-')?;
    let (rest, year) = rest.rsplit_once('-')?;
    (digits(last, 2) && digits(month, 2) && digits(year, 4)).then_some(rest)
}

struct Row<'a> {
    provider: &'a str,
    model: &'a str,
    above: u64,
    prices: Prices,
}

impl<'a> Row<'a> {
    fn read(line: &'a str) -> Result<Self, String> {
        let cells: Vec<&str> = line.split('\t').map(str::trim).collect();
        let [provider, model, above, input, output, read, written] = cells[..] else {
            return Err(format!(
                "expected 7 columns with tabs between them, found {}",
                cells.len()
            ));
        };
        let amount = |name: &str, text: &str| {
            let number = text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
            number.ok_or_else(|| format!("{name} is `{text}`; expected an amount for a million tokens"))
        };
        let optional = |name: &str, text: &str| match text {
            "" => Ok(None),
            _ => amount(name, text).map(Some),
        };
        Ok(Self {
            provider,
            model,
            above: match above {
                "" => 0,
                _ => above
                    .parse()
                    .map_err(|_| format!("above is `{above}`; expected a number of tokens"))?,
            },
            prices: Prices {
                input: amount("input", input)?,
                output: amount("output", output)?,
                cache_read: optional("cache_read", read)?,
                cache_write: optional("cache_write", written)?,
                long: None,
            },
        })
    }

    /// Adds the row to what is known of its model. Where there are several for long prompts, the dearest counts.
    fn add(&self, prices: &mut Option<Prices>) {
        let Self { above, prices: own, .. } = self;
        match prices {
            None => *prices = Some(*own),
            Some(prices) if *above > 0 && prices.long.is_none_or(|long| own.output > long.output) => {
                prices.long = Some(LongPrices {
                    above: *above,
                    input: own.input,
                    output: own.output,
                    cache_read: own.cache_read,
                    cache_write: own.cache_write,
                });
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use decanus_chat::Usage;

    use super::*;

    fn profile(backend: &str, url: &str, model: &str) -> Profile {
        Profile {
            url: url.into(),
            ..Profile::new("e", backend, model)
        }
    }

    #[test]
    fn every_line_of_the_table_is_a_price() {
        assert_eq!(look_up(BUILT_IN, "nobody", "nothing"), Ok(None));
    }

    #[test]
    fn a_provider_s_model_has_prices_and_a_server_of_one_s_own_has_none() {
        let openai = |model| find(&profile("responses", "https://api.openai.com/v1", model), &[]).unwrap();
        let nano = openai("gpt-5-nano").unwrap();
        assert_eq!((nano.input, nano.output, nano.cache_read), (0.05, 0.4, Some(0.005)));
        assert_eq!(openai("gpt-5-nano-2031-01-31"), Some(nano));
        assert_eq!(openai("gpt-5-nan"), None);
        let own = profile("openai", "http://127.0.0.1:8080/v1", "gpt-5-nano");
        assert_eq!(find(&own, &[]).unwrap(), None);
        let claude = profile("anthropic", "https://api.anthropic.com/v1", "claude-sonnet-4-5");
        assert_eq!(find(&claude, &[]).unwrap().unwrap().cache_write, Some(3.75));
    }

    #[test]
    fn long_prompts_cost_more_where_the_table_says_so() {
        let gemini = profile(
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta",
            "gemini-2.5-pro",
        );
        let prices = find(&gemini, &[]).unwrap().unwrap();
        let usage = |pt| Usage {
            pt: Some(pt),
            ct: Some(1_000_000),
            ..Usage::default()
        };
        assert_eq!(prices.cost(&usage(200_000), false), 0.25 + 10.0);
        assert_eq!(prices.cost(&usage(400_000), false), 1.0 + 15.0);
    }

    #[test]
    fn one_s_own_table_comes_first_and_its_faults_have_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prices.tsv");
        let files = [folder.path().join("none.tsv"), file.clone()];
        let own = profile("openai", "http://127.0.0.1:8080/v1", "m");
        std::fs::write(&file, format!("{COLUMNS}\n127.0.0.1:8080\tm\t\t1\t2\t\t\n")).unwrap();
        let prices = find(&own, &files).unwrap().unwrap();
        assert_eq!((prices.input, prices.output, prices.cache_read), (1.0, 2.0, None));
        for (line, words) in [
            ("*\tm\t0\tcheap\t2\t\t", "input is `cheap`"),
            ("*\tm\t0\t-1\t2\t\t", "input is `-1`"),
            ("*\tm\tx\t1\t2\t\t", "above is `x`"),
            ("* m 0 1 2", "expected 7 columns"),
        ] {
            std::fs::write(&file, format!("# mine\n{COLUMNS}\n{line}\n")).unwrap();
            let error = find(&own, &files).unwrap_err();
            assert!(error.line == 3 && error.message.contains(words), "{error}");
        }
        std::fs::write(&file, "model\tprice\n").unwrap();
        assert_eq!(find(&own, &files).unwrap_err().line, 1);
    }
}
