//! `decanus model list|pull|path`, and what the other commands need to know of local models.

use decanus::Decanus;

use crate::args::Model;
use crate::{Context, Ended};

pub fn with_local(decanus: Decanus) -> Decanus {
    decanus
}

pub fn checks(_decanus: &Decanus) -> Vec<(String, bool, String, Option<String>)> {
    Vec::new()
}

pub async fn run(_command: Model, _cx: &Context) -> Ended {
    Ok(0)
}
