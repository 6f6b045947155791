//! What may be reached although it is not public.

use url::Host;

use crate::address::Restriction;

/// The variables that hold the list. The second is what older installations set.
const VARIABLES: [&str; 2] = ["DECANUS_ALLOW_PRIVATE_URLS", "LEGATE_ALLOW_PRIVATE_TOOL_URLS"];

/// An entry that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: '{entry}' is no host, host:port or address (1 allows all private addresses)")]
pub struct AllowError {
    /// Where the list came from.
    pub variable: String,
    /// The entry.
    pub entry: String,
}

/// Hosts that may be reached although their addresses are not public. Nothing by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList {
    all: bool,
    hosts: Vec<(String, Option<u16>)>,
}

impl AllowList {
    /// What the environment allows: `DECANUS_ALLOW_PRIVATE_URLS`, else `LEGATE_ALLOW_PRIVATE_TOOL_URLS`.
    ///
    /// # Errors
    /// When an entry cannot be read.
    pub fn from_env() -> Result<Self, AllowError> {
        for variable in VARIABLES {
            if let Some(value) = std::env::var_os(variable) {
                return Self::parse(&value.to_string_lossy()).map_err(|entry| AllowError {
                    variable: variable.to_owned(),
                    entry,
                });
            }
        }
        Ok(Self::default())
    }

    /// What the environment allows for token servers: as [`AllowList::from_env`], and what `LEGATE_ALLOW_PRIVATE_AUTH_URLS`
    /// lists.
    ///
    /// # Errors
    /// When an entry cannot be read.
    pub fn for_auth_from_env() -> Result<Self, AllowError> {
        const VARIABLE: &str = "LEGATE_ALLOW_PRIVATE_AUTH_URLS";
        let mut allowed = Self::from_env()?;
        if let Some(value) = std::env::var_os(VARIABLE) {
            let more = Self::parse(&value.to_string_lossy()).map_err(|entry| AllowError {
                variable: VARIABLE.to_owned(),
                entry,
            })?;
            allowed.all |= more.all;
            allowed.hosts.extend(more.hosts);
        }
        Ok(allowed)
    }

    /// Reads a list: `1` or `true` for all private addresses, or hosts (`host`, `host:port`, an address, `[address]:port`)
    /// with commas between. Empty, `0` and `false` allow nothing.
    ///
    /// # Errors
    /// The entry that is none of these.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut allowed = Self::default();
        for entry in list.split(',').map(str::trim) {
            match entry.to_ascii_lowercase().as_str() {
                "" | "0" | "false" => {}
                "1" | "true" => allowed.all = true,
                _ => allowed.hosts.push(read_entry(entry).ok_or_else(|| entry.to_owned())?),
            }
        }
        Ok(allowed)
    }

    /// Whether it allows anything.
    pub fn is_empty(&self) -> bool {
        !self.all && self.hosts.is_empty()
    }

    /// Whether this host (as [`host_key`] writes it) is listed, for this port.
    pub(crate) fn lists(&self, host: &str, port: u16) -> bool {
        self.hosts.iter().any(|(h, p)| h == host && p.is_none_or(|p| p == port))
    }

    /// Whether a URL with this host and port may lead to an address of this kind.
    pub(crate) fn allows(&self, host: &str, port: u16, restriction: Restriction) -> bool {
        self.lists(host, port) || (self.all && restriction != Restriction::Metadata)
    }
}

fn read_entry(entry: &str) -> Option<(String, Option<u16>)> {
    // A bare IPv6 address has colons of its own.
    if let Ok(address) = entry.parse::<std::net::Ipv6Addr>() {
        return Some((address.to_string(), None));
    }
    let (host, port) = match entry.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => (host, Some(port.parse::<u16>().ok()?)),
        _ => (entry, None),
    };
    // `*`, `/` and the like are caught here: nothing is taken for a pattern or a network.
    let wild = |c: char| c == '*' || c == '%' || c.is_whitespace() || c.is_control();
    if host.contains(wild) {
        return None;
    }
    Host::parse(host).ok().map(|host| (host_key(&host), port))
}

/// The one way to write a host: lower case, no dot at the end, addresses without brackets.
pub(crate) fn host_key<S: AsRef<str>>(host: &Host<S>) -> String {
    match host {
        Host::Domain(name) => name.as_ref().trim_end_matches('.').to_ascii_lowercase(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let list = AllowList::parse(" Lab.example, 10.0.0.5:8080,[::1]:80, fd00::7 , 127.1").unwrap();
        assert!(list.lists("lab.example", 1) && list.lists("10.0.0.5", 8080) && !list.lists("10.0.0.5", 80));
        assert!(
            list.lists("::1", 80) && !list.lists("::1", 81) && list.lists("fd00::7", 9) && list.lists("127.0.0.1", 80)
        );
        assert!(!list.allows("10.0.0.6", 8080, Restriction::Private));
        for nothing in ["", "0", "false", " , "] {
            assert!(AllowList::parse(nothing).unwrap().is_empty(), "{nothing:?}");
        }
        for bad in [
            "http://h/",
            "10.0.0.0/8",
            "*.corp",
            "h:port",
            "h:99999",
            "a b",
            "[::1",
            ":80",
            "[fe80::1%eth0]",
        ] {
            assert_eq!(AllowList::parse(bad).unwrap_err(), bad);
        }
    }

    #[test]
    fn all_private_is_not_metadata() {
        let all = AllowList::parse("true").unwrap();
        assert!(all.allows("10.0.0.1", 80, Restriction::Private));
        assert!(!all.allows("169.254.169.254", 80, Restriction::Metadata));
        let listed = AllowList::parse("1,169.254.169.254").unwrap();
        assert!(listed.allows("169.254.169.254", 80, Restriction::Metadata));
        assert!(!listed.allows("evil.example", 80, Restriction::Metadata));
    }
}
