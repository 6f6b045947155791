//! The least that a Rust program can do: the start of `decanus` is compared with this one's.
#![allow(clippy::print_stdout)]

fn main() {
    println!("Hello, world!");
}
