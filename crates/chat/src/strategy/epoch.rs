//! `shorten_tools_epoch`: boundaries that stay where they are for a number of rounds.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use decanus_base::digest::ValueHasher;

use super::edits::{Edits, notice};
use super::pairs::{Pair, pairs};
use super::{Settings, Strategy};
use crate::message::{Message, Role};

/// Shortens old pairs and leaves out older ones, such that within an epoch of `epoch_size` pairs the beginning of a
/// request stays the same to the byte: providers' caches match on it.
///
/// Of calls with the same name and arguments, the latest before the current epoch stays whole, however old it is. (The
/// ones in the epoch are whole anyway. Were they counted, a repetition would change the fate of an old pair in the
/// middle of an epoch.) When something was changed, one `user` message says so.
#[derive(Clone, Copy, Debug)]
pub struct ShortenToolsEpoch;

/// Where the fates of a number of pairs change.
#[derive(Debug, PartialEq, Eq)]
struct Boundaries {
    /// How many of the oldest pairs are older than the current epoch.
    pinned: u64,
    /// The position, counted from the newest pair with 1, up to which pairs are whole.
    whole: u64,
    /// The position up to which pairs are shortened.
    short: u64,
}

/// None when all are whole.
fn boundaries(pairs: u64, settings: &Settings) -> Option<Boundaries> {
    let threshold = settings.epoch_tool_call_threshold;
    let (whole, short) = (settings.epoch_full_tool_calls, settings.epoch_compacted_tool_calls);
    if pairs <= threshold || settings.epoch_size == 0 || (whole == 0 && short == 0) {
        return None;
    }
    let epoch = (pairs - threshold - 1) / settings.epoch_size;
    let pinned = threshold + epoch * settings.epoch_size;
    let whole = (pairs - pinned).saturating_add(whole);
    Some(Boundaries {
        pinned,
        whole,
        short: whole.saturating_add(short),
    })
}

/// Of every request that occurs more than once, the index of the latest. Members of objects have no order.
fn protected(pairs: &[Pair]) -> HashSet<usize> {
    let mut latest: HashMap<String, (usize, bool)> = HashMap::new();
    for (i, pair) in pairs.iter().enumerate() {
        let mut hasher = ValueHasher::new();
        hasher
            .text(&pair.request.name)
            .value(&pair.request.arguments.to_value());
        latest
            .entry(hasher.hex())
            .and_modify(|entry| *entry = (i, true))
            .or_insert((i, false));
    }
    latest
        .into_values()
        .filter_map(|(i, repeated)| repeated.then_some(i))
        .collect()
}

impl Strategy for ShortenToolsEpoch {
    fn name(&self) -> &str {
        "shorten_tools_epoch"
    }

    fn apply<'a>(&self, messages: &'a [Message], settings: &Settings) -> Cow<'a, [Message]> {
        // Most conversations have few calls; nothing is read for them.
        let outputs = messages.iter().filter(|m| m.role == Role::FunctionCallOutput).count();
        if boundaries(outputs as u64, settings).is_none() {
            return Cow::Borrowed(messages);
        }
        let pairs = pairs(messages);
        let count = pairs.len() as u64;
        let Some(boundaries) = boundaries(count, settings) else {
            return Cow::Borrowed(messages);
        };
        let older = pairs.iter().zip(1..).take_while(|(_, n)| *n <= boundaries.pinned);
        let protected = protected(&pairs[..older.count()]);
        let mut edits = Edits::new(messages);
        for (i, pair) in pairs.iter().enumerate() {
            let position = count - i as u64;
            if position <= boundaries.whole || protected.contains(&i) {
                continue;
            }
            if position <= boundaries.short {
                edits.shorten(pair);
            } else {
                edits.remove(pair);
            }
        }
        let place = edits.place_of_notice(messages.len());
        let notice = notice(edits.shortened, edits.removed, true);
        edits.into_view(Some((place, notice)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{call, output, rounds, tally};
    use super::*;
    use crate::print;

    fn view(messages: &[Message]) -> Cow<'_, [Message]> {
        ShortenToolsEpoch.apply(messages, &Settings::default())
    }

    fn notice_of(view: &[Message]) -> Option<&Message> {
        view.iter().find(|m| m.content.starts_with("# Context management"))
    }

    #[test]
    fn the_table_of_the_specification() {
        for (pairs, pinned, whole, shortened, dropped) in [
            (50, None, 50, 0, 0),
            (51, Some(50), 21, 30, 0),
            (70, Some(50), 40, 30, 0),
            (71, Some(70), 21, 50, 0),
            (110, Some(90), 40, 70, 0),
            (111, Some(110), 21, 80, 10),
            (130, Some(110), 40, 80, 10),
            (131, Some(130), 21, 80, 30),
        ] {
            let messages = rounds(pairs, 500);
            let found = boundaries(pairs as u64, &Settings::default());
            assert_eq!(found.map(|b| b.pinned), pinned, "{pairs}");
            let view = view(&messages);
            assert_eq!(tally(&messages, &view), (whole, shortened, dropped), "{pairs}");
            match notice_of(&view) {
                // Calls are short already, so only outputs are counted as shortened; both halves count as left out.
                Some(notice) => assert_eq!(*notice, super::notice(shortened, 2 * dropped, true)),
                None => assert!(matches!(view, Cow::Borrowed(_))),
            }
        }
    }

    #[test]
    fn within_an_epoch_the_bytes_of_a_view_begin_those_of_the_next() {
        // Repetitions, several calls in one answer and texts, as they come.
        let mut messages = vec![Message::user("go")];
        let mut ends = vec![messages.len()];
        for n in 1..=140_usize {
            let id = format!("c{n}");
            // 60, 80 and 120 repeat, in the middle of an epoch, what was called long before.
            let argument = match n {
                3 | 10 | 60 | 80 | 120 => "seldom".to_owned(),
                _ if n % 7 == 0 => "often".to_owned(),
                _ => format!("{n}"),
            };
            messages.push(call(&id, "f", &argument));
            if n % 5 == 0 {
                messages.push(Message::assistant(format!("text {n}")));
            }
            messages.push(output(&id, &format!("{n:0450}")));
            ends.push(messages.len());
        }
        let bytes = |n: usize| print(&view(&messages[..ends[n]]));
        for n in (51..=69).chain(71..=89).chain(111..=129) {
            assert!(bytes(n + 1).starts_with(&bytes(n)), "{n}");
        }
        for n in [50, 70, 110, 130] {
            assert!(!bytes(n + 1).starts_with(&bytes(n)), "a boundary lies behind {n}");
        }
    }

    #[test]
    fn the_latest_of_repeated_calls_is_whole() {
        let mut messages = vec![Message::user("go")];
        let long = "l".repeat(500);
        for n in 1..=140 {
            let id = format!("c{n}");
            // Pairs 2, 5 and 60 are the same, in whatever order the members stand.
            let request = match n {
                2 | 60 => format!(r#"{{"name":"f","arguments":{{"a":{{"x":1,"y":2}},"q":"{long}"}},"id":"{id}"}}"#),
                5 => format!(r#"{{"id":"{id}","arguments":{{"q":"{long}","a":{{"y":2,"x":1}}}},"name":"f"}}"#),
                _ => call(&id, "f", &format!("{n}")).content,
            };
            messages.push(Message::new(Role::FunctionCall, request));
            messages.push(output(&id, &format!("{n:0500}")));
        }
        let is_in = |view: &[Message], n: usize| view.contains(&messages[2 * n]);
        let at_60 = view(&messages[..121]);
        assert!(is_in(&at_60, 60) && is_in(&at_60, 5) && !is_in(&at_60, 2));
        let at_140 = view(&messages);
        assert!(is_in(&at_140, 60), "older than what is whole, but protected");
        assert!(at_140.contains(&messages[2 * 60 - 1]), "and so is its call");
        assert!(!is_in(&at_140, 5) && !is_in(&at_140, 61));
    }

    #[test]
    fn halves_and_bad_records_are_kept_and_take_no_position() {
        let bad = |role| Message::new(role, "null");
        let head = [
            bad(Role::FunctionCall),
            bad(Role::FunctionCallOutput),
            call("open", "f", &"x".repeat(300)),
            output("lost", &"y".repeat(500)),
        ];
        let mut messages = head.to_vec();
        messages.extend(rounds(50, 500));
        assert!(matches!(view(&messages), Cow::Borrowed(_)), "50 pairs, 52 outputs");
        messages = head.to_vec();
        messages.extend(rounds(111, 500));
        let view = view(&messages);
        let expected: Vec<Message> = std::iter::once(notice(80, 20, true)).chain(head).collect();
        assert_eq!(view[..5], expected);
    }

    #[test]
    fn settings_can_switch_it_off() {
        let messages = rounds(200, 500);
        for off in [
            &[("epoch_size", "0")][..],
            &[("epoch_full_tool_calls", "0"), ("epoch_compacted_tool_calls", "0")],
            &[("epoch_tool_call_threshold", "200")],
        ] {
            let mut settings = Settings::default();
            for (name, value) in off {
                settings.set(name, value).unwrap();
            }
            let view = ShortenToolsEpoch.apply(&messages, &settings);
            assert!(matches!(view, Cow::Borrowed(_)), "{off:?}");
        }
    }
}
