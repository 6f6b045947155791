//! What several measuring programs share: the chats that are measured.

pub mod hostile;
pub mod sample;
