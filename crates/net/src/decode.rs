//! Bodies as they were before they were compressed, piece by piece.

use std::pin::Pin;

use async_compression::futures::bufread::{BrotliDecoder, DeflateDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder};
use async_compression::zstd::DParameter;
use futures::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};

/// What the client can read.
pub(crate) const ACCEPTED: &str = "gzip, deflate, br, zstd";

/// More than one compression around another is nothing that servers do.
const MOST_LAYERS: usize = 2;

/// The window of zstd that RFC 8878 asks of every reader: 8 MB. A larger one costs that much memory.
const ZSTD_WINDOW_LOG: u32 = 23;

/// A body to read from.
pub(crate) type Source = Pin<Box<dyn AsyncBufRead + Send>>;

/// The body as its `Content-Encoding` says, or the encoding that is not known.
pub(crate) async fn decode(mut body: Source, encodings: &str) -> std::io::Result<Result<Source, String>> {
    let layers: Vec<String> = encodings.split(',').map(|e| e.trim().to_ascii_lowercase()).collect();
    let layers: Vec<&str> = layers
        .iter()
        .map(String::as_str)
        .filter(|e| !e.is_empty() && *e != "identity")
        .collect();
    if layers.len() > MOST_LAYERS {
        return Ok(Err(layers.join(", ")));
    }
    // The last one was put on last.
    for layer in layers.into_iter().rev() {
        // HEAD, 204 and 304 have no body to decompress whatever their headers say.
        let start = body.fill_buf().await?;
        if start.is_empty() {
            return Ok(Ok(body));
        }
        body = match layer {
            "gzip" | "x-gzip" => {
                let mut decoder = GzipDecoder::new(body);
                decoder.multiple_members(true);
                buffered(decoder)
            }
            // What the standard calls deflate is zlib; some servers send it bare.
            "deflate" if is_zlib(start) => buffered(ZlibDecoder::new(body)),
            "deflate" => buffered(DeflateDecoder::new(body)),
            "br" => buffered(BrotliDecoder::new(body)),
            "zstd" => buffered(ZstdDecoder::with_params(
                body,
                &[DParameter::window_log_max(ZSTD_WINDOW_LOG)],
            )),
            other => return Ok(Err(other.to_owned())),
        };
    }
    Ok(Ok(body))
}

fn buffered(decoder: impl AsyncRead + Send + 'static) -> Source {
    Box::pin(BufReader::with_capacity(32 * 1024, decoder))
}

/// The two bytes at the head of zlib (RFC 1950): a method, and a check.
fn is_zlib(start: &[u8]) -> bool {
    match start {
        [method, flags, ..] => method & 0x0f == 8 && (u16::from(*method) << 8 | u16::from(*flags)).is_multiple_of(31),
        [method] => method & 0x0f == 8,
        [] => true,
    }
}
