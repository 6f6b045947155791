//! The numbers that strategies go by.

use decanus_base::names::did_you_mean;

/// The settings of all built-in strategies: counts of pairs (a call and its output) but for `max_tool_chars`.
///
/// Positions are counted from the newest pair, which has 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `shorten_tools`: pairs before this position stay whole whatever their size. Default 0.
    pub full_tool_calls: u64,
    /// `shorten_tools`: the same; the greater of the two counts. Default 10, so that nine stay whole.
    pub full_tool_outputs: u64,
    /// `shorten_tools`: of the pairs that don't fit into `max_tool_chars`, those behind this position are left out.
    /// Default 40.
    pub max_tool_calls: u64,
    /// `shorten_tools`: the same; the smaller of the two counts. As `max_tool_calls` unless set.
    pub max_tool_outputs: Option<u64>,
    /// `shorten_tools`: how many characters of outputs, as they are stored, stay whole. Default 100 000.
    pub max_tool_chars: u64,
    /// `shorten_tools_epoch`: up to so many pairs nothing happens. Default 50.
    pub epoch_tool_call_threshold: u64,
    /// `shorten_tools_epoch`: so many pairs before the current epoch stay whole. Default 20.
    pub epoch_full_tool_calls: u64,
    /// `shorten_tools_epoch`: so many pairs before those are shortened; older ones are left out. Default 80.
    pub epoch_compacted_tool_calls: u64,
    /// `shorten_tools_epoch`: how many pairs later the boundaries move on. 0 switches the strategy off. Default 20.
    pub epoch_size: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            full_tool_calls: 0,
            full_tool_outputs: 10,
            max_tool_calls: 40,
            max_tool_outputs: None,
            max_tool_chars: 100_000,
            epoch_tool_call_threshold: 50,
            epoch_full_tool_calls: 20,
            epoch_compacted_tool_calls: 80,
            epoch_size: 20,
        }
    }
}

impl Settings {
    /// The names of all settings.
    pub const KNOWN: &[&str] = &[
        "full_tool_calls",
        "full_tool_outputs",
        "max_tool_calls",
        "max_tool_outputs",
        "max_tool_chars",
        "epoch_tool_call_threshold",
        "epoch_full_tool_calls",
        "epoch_compacted_tool_calls",
        "epoch_size",
    ];

    /// Sets one setting from its text: a whole number from 0.
    ///
    /// # Errors
    /// What is wrong: an unknown name, or a text that is not such a number.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = value.trim().parse();
        let number = number.map_err(|_| format!("{name} takes a whole number from 0, found `{value}`"));
        match name {
            "full_tool_calls" => self.full_tool_calls = number?,
            "full_tool_outputs" => self.full_tool_outputs = number?,
            "max_tool_calls" => self.max_tool_calls = number?,
            "max_tool_outputs" => self.max_tool_outputs = Some(number?),
            "max_tool_chars" => self.max_tool_chars = number?,
            "epoch_tool_call_threshold" => self.epoch_tool_call_threshold = number?,
            "epoch_full_tool_calls" => self.epoch_full_tool_calls = number?,
            "epoch_compacted_tool_calls" => self.epoch_compacted_tool_calls = number?,
            "epoch_size" => self.epoch_size = number?,
            _ => {
                return Err(format!(
                    "no prompt strategy has a setting `{name}`{}",
                    did_you_mean(name, Self::KNOWN.iter().copied())
                ));
            }
        }
        Ok(())
    }

    /// The defaults, with what an environment says under the names in upper case (`EPOCH_SIZE`); blank counts as not
    /// set. Made anew for every request, so that what one request is given does not hold for the next.
    ///
    /// # Errors
    /// Those of [`set`](Self::set), naming the variable.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut settings = Self::default();
        for name in Self::KNOWN {
            let variable = name.to_ascii_uppercase();
            if let Some(value) = get(&variable).filter(|value| !value.trim().is_empty()) {
                settings
                    .set(name, &value)
                    .map_err(|e| format!("environment variable {variable}: {e}"))?;
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_can_be_set_and_no_two_are_the_same() {
        let mut settings = Settings::default();
        for (value, name) in (1000..).zip(Settings::KNOWN) {
            settings.set(name, &format!(" {value} ")).unwrap();
        }
        let expected = Settings {
            full_tool_calls: 1000,
            full_tool_outputs: 1001,
            max_tool_calls: 1002,
            max_tool_outputs: Some(1003),
            max_tool_chars: 1004,
            epoch_tool_call_threshold: 1005,
            epoch_full_tool_calls: 1006,
            epoch_compacted_tool_calls: 1007,
            epoch_size: 1008,
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn errors_name_the_setting_and_what_it_takes() {
        let mut settings = Settings::default();
        for bad in ["-1", "ten", "", "1.5"] {
            assert_eq!(
                settings.set("max_tool_outputs", bad).unwrap_err(),
                format!("max_tool_outputs takes a whole number from 0, found `{bad}`")
            );
        }
        assert_eq!(settings, Settings::default(), "a refused value changes nothing");
        assert_eq!(
            settings.set("epoch_sise", "1").unwrap_err(),
            "no prompt strategy has a setting `epoch_sise`; did you mean epoch_size?"
        );
    }

    #[test]
    fn the_environment_has_the_names_in_upper_case() {
        let get = |name: &str| match name {
            "EPOCH_SIZE" => Some("5".to_owned()),
            "MAX_TOOL_CALLS" => Some(" ".to_owned()),
            _ => None,
        };
        let settings = Settings::from_env(get).unwrap();
        assert_eq!(settings.epoch_size, 5);
        assert_eq!(settings.max_tool_calls, 40);
        assert_eq!(
            Settings::from_env(|name| (name == "EPOCH_SIZE").then(|| "x".to_owned())).unwrap_err(),
            "environment variable EPOCH_SIZE: epoch_size takes a whole number from 0, found `x`"
        );
    }
}
