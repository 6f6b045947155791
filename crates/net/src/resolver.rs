//! Names to addresses.

use std::net::IpAddr;

use async_trait::async_trait;

/// Finds the addresses of a host.
#[async_trait]
pub trait Resolver: Send + Sync {
    /// All addresses of a name, of both families, in the order in which they should be tried.
    ///
    /// # Errors
    /// When the name has none or cannot be looked up.
    async fn lookup(&self, host: &str) -> std::io::Result<Vec<IpAddr>>;
}

/// The system's way: its hosts file, then DNS.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn lookup(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        let mut addresses = Vec::new();
        for address in tokio::net::lookup_host((host, 0)).await? {
            if !addresses.contains(&address.ip()) {
                addresses.push(address.ip());
            }
        }
        Ok(addresses)
    }
}
