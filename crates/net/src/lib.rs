//! All traffic that a model, a page or a tool result can steer goes through here.
//!
//! A [`Client`] sends a [`Request`] and gives a [`Reply`]. Before each connection, also after a redirect, the [`Guard`]
//! looks at the URL and at every address its host has ([`classify`] says what an address is), and the connection goes
//! to the addresses that were looked at. Sizes are counted after decompression, times have limits, no proxy is asked.
//! What may be reached besides the public network is in an [`AllowList`].
//!
//! [`auth`] has the user's credentials and adds them to requests, each at its own URLs only.
//!
//! [`page`] makes readable text of a reply: HTML, PDF, plain text.

pub mod address;
pub mod allow;
pub mod auth;
pub mod authorizer;
pub mod client;
mod decode;
pub mod error;
pub mod guard;
pub mod page;
pub mod reply;
pub mod request;
pub mod resolver;

pub use address::{Class, Restriction, classify};
pub use allow::{AllowError, AllowList};
pub use auth::{Auth, AuthError};
pub use authorizer::{AuthorizeError, Authorizer, Grant, Hop};
pub use client::{Client, ClientBuilder, Limits};
pub use error::{Error, Refusal, show_url};
pub use guard::{Guard, Target};
pub use page::{Page, PageOptions};
pub use reply::Reply;
pub use request::{Body, Method, Request};
pub use resolver::{Resolver, SystemResolver};
