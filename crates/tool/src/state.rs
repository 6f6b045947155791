//! The state of a session, as tools read and write it.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

use crate::tool::ToolError;

/// The prefixes that a key may have: the user's and the application's state, and what ends with the run.
pub const PREFIXES: [&str; 3] = ["user:", "app:", "temp:"];

/// What holds the state of a session. Changes come as whole deltas, one for each tool call.
pub trait StateStore: Send + Sync {
    /// A value as it was last committed.
    fn get(&self, key: &str) -> Option<Value>;

    /// Commits what a call has changed; null removes a key.
    ///
    /// # Errors
    /// A text for the model: the change could not be kept, and none of it was.
    fn apply(&self, delta: &Map<String, Value>) -> Result<(), String>;
}

/// State in memory.
#[derive(Debug, Default)]
pub struct MemoryState(Mutex<Map<String, Value>>);

impl MemoryState {
    /// With what is known already.
    pub fn new(values: Map<String, Value>) -> Self {
        Self(Mutex::new(values))
    }

    /// All of it.
    pub fn values(&self) -> Map<String, Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl StateStore for MemoryState {
    fn get(&self, key: &str) -> Option<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn apply(&self, delta: &Map<String, Value>) -> Result<(), String> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in delta {
            if value.is_null() {
                values.shift_remove(key);
            } else {
                values.insert(key.clone(), value.clone());
            }
        }
        Ok(())
    }
}

/// The state as one call sees it: what is committed, and over it what the call itself has written. That is committed
/// when the tool has returned, and forgotten when it failed.
#[derive(Clone)]
pub struct State {
    store: Arc<dyn StateStore>,
    pending: Arc<Mutex<Map<String, Value>>>,
}

impl State {
    pub(crate) fn new(store: Arc<dyn StateStore>) -> Self {
        Self {
            store,
            pending: Arc::default(),
        }
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Map<String, Value>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A value: this call's own, else the committed one.
    pub fn get(&self, key: &str) -> Option<Value> {
        let own = self.pending().get(key).cloned();
        own.or_else(|| self.store.get(key)).filter(|value| !value.is_null())
    }

    /// Sets a value; null removes it.
    ///
    /// # Errors
    /// An argument error for a key that is empty or has a prefix that is none of [`PREFIXES`].
    pub fn set(&self, key: &str, value: impl Into<Value>) -> Result<(), ToolError> {
        check_key(key).map_err(ToolError::argument)?;
        self.pending().insert(key.to_owned(), value.into());
        Ok(())
    }

    /// Sets several values, or none of them.
    ///
    /// # Errors
    /// Those of [`State::set`].
    pub fn update(&self, values: Map<String, Value>) -> Result<(), ToolError> {
        for key in values.keys() {
            check_key(key).map_err(ToolError::argument)?;
        }
        self.pending().extend(values);
        Ok(())
    }

    /// Commits what was written, and gives it.
    pub(crate) fn commit(&self) -> Result<Map<String, Value>, ToolError> {
        let delta = std::mem::take(&mut *self.pending());
        if !delta.is_empty() {
            self.store
                .apply(&delta)
                .map_err(|why| ToolError::respond(crate::ToolErrorClass::Tool, why))?;
        }
        Ok(delta)
    }
}

fn check_key(key: &str) -> Result<(), String> {
    if key.trim().is_empty() {
        return Err("a key of the state may not be empty".into());
    }
    match key.split_once(':') {
        Some((prefix, rest)) if !PREFIXES.contains(&format!("{prefix}:").as_str()) || rest.is_empty() => Err(format!(
            "`{key}` is no key of the state: before a colon only user, app and temp may stand"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_call_sees_its_own_writes_and_others_only_what_is_committed() {
        let store = Arc::new(MemoryState::default());
        let (one, two) = (State::new(store.clone()), State::new(store.clone()));
        one.set("counter", 1).unwrap();
        assert_eq!((one.get("counter"), two.get("counter")), (Some(json!(1)), None));
        one.commit().unwrap();
        assert_eq!(two.get("counter"), Some(json!(1)));
        two.set("counter", Value::Null).unwrap();
        assert_eq!(two.get("counter"), None);
        two.commit().unwrap();
        assert!(store.values().is_empty());
    }

    #[test]
    fn keys_are_checked_at_once_and_together() {
        let state = State::new(Arc::new(MemoryState::default()));
        for good in ["a", "user:a", "app:a", "temp:a"] {
            state.set(good, true).unwrap();
        }
        for bad in ["foo:x", "", " ", "user:", ":x"] {
            assert!(state.set(bad, true).is_err(), "{bad}");
        }
        let mixed = json!({"fine": 1, "foo:x": 2}).as_object().cloned().unwrap();
        assert!(state.update(mixed).is_err());
        assert_eq!(state.get("fine"), None);
    }
}
