//! Names, a client and a server for tests.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use decanus_net::{AllowList, Client, Limits, Resolver};

/// Answers as scripted: the answers of a name in turn, the last one for ever.
#[derive(Default)]
pub struct Names {
    answers: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    pub asked: AtomicUsize,
}

impl Names {
    pub fn new(names: &[(&str, &[&str])]) -> Arc<Self> {
        let scripted = Self::default();
        for (name, addresses) in names {
            scripted.then(name, addresses);
        }
        Arc::new(scripted)
    }

    pub fn then(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        self.answers
            .lock()
            .unwrap()
            .entry(name.to_owned())
            .or_default()
            .push(addresses);
    }

    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Resolver for Names {
    async fn lookup(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answers.lock().unwrap();
        match answers.get_mut(host) {
            Some(list) if list.len() > 1 => Ok(list.remove(0)),
            Some(list) => Ok(list[0].clone()),
            None => Err(std::io::Error::other("no such name")),
        }
    }
}

/// Short enough for tests that wait for them, long enough for a busy machine.
pub fn limits() -> Limits {
    Limits {
        connect: Duration::from_secs(5),
        read: Duration::from_secs(10),
        total: Duration::from_secs(20),
        ..Limits::default()
    }
}

/// A client for which all names lead to this machine and these hosts are allowed.
pub fn client(names: Arc<Names>, allowed: &str) -> Client {
    Client::builder()
        .resolver(names)
        .allow(AllowList::parse(allowed).unwrap())
        .limits(limits())
        .build()
}

/// Names that all lead to this machine.
pub fn here(names: &[&str]) -> Arc<Names> {
    let names: Vec<(&str, &[&str])> = names.iter().map(|n| (*n, &["127.0.0.1"][..])).collect();
    Names::new(&names)
}

pub fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}
