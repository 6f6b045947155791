//! What several measuring programs share: the chats and pages that are measured.

pub mod hostile;
pub mod pages;
pub mod sample;
