//! Signatures (SigV4).

use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use decanus_backend::dialect::Signer;
use decanus_backend::{BackendError, Profile};
use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::Request;
use reqwest::header::{HeaderName, HeaderValue};

use crate::credentials::Source;

/// The service that signatures are for; `bedrock-runtime` is only its host's name.
const SERVICE: &str = "bedrock";

/// Signs the requests to one endpoint.
#[derive(Debug)]
pub(crate) struct SigV4 {
    region: String,
    source: Source,
}

impl SigV4 {
    /// For an endpoint whose region has been decided.
    pub fn new(profile: &Profile) -> Self {
        Self {
            region: profile.aws.as_ref().and_then(|a| a.region.clone()).unwrap_or_default(),
            source: Source::new(profile),
        }
    }
}

impl Signer for SigV4 {
    fn sign(&self, mut request: Request) -> BoxFuture<'_, Result<Request, BackendError>> {
        async move {
            let credentials = self.source.get().await?;
            add_signature(&mut request, credentials, &self.region, SystemTime::now())
                .map_err(|e| BackendError::Internal(format!("a request can't be signed: {e}")))?;
            Ok(request)
        }
        .boxed()
    }
}

/// Adds the headers of a signature.
fn add_signature(
    request: &mut Request,
    credentials: Credentials,
    region: &str,
    time: SystemTime,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let identity = credentials.into();
    let params = SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(SERVICE)
        .time(time)
        .settings(SigningSettings::default())
        .build()?
        .into();
    let headers = request.headers().iter();
    let headers = headers.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    let body = request.body().and_then(|b| b.as_bytes()).unwrap_or_default();
    let signable = SignableRequest::new(
        request.method().as_str(),
        request.url().as_str(),
        headers,
        SignableBody::Bytes(body),
    )?;
    let (instructions, _) = sign(signable, &params)?.into_parts();
    for header in instructions.into_parts().0 {
        let mut value = HeaderValue::from_str(header.value())?;
        value.set_sensitive(true);
        request
            .headers_mut()
            .insert(HeaderName::from_static(header.name()), value);
    }
    Ok(())
}
