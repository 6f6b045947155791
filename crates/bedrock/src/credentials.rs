//! Credentials, found where the tools of AWS find them.

use std::time::{Duration, SystemTime};

use aws_config::Region;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::EnvironmentVariableCredentialsProvider;
use aws_config::imds;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use decanus_backend::client::causes;
use decanus_backend::{Aws, BackendError, Profile};
use tokio::sync::Mutex;

use crate::place::is_aws;

/// Credentials that end sooner than this are asked for anew.
const SOON: Duration = Duration::from_secs(60);

/// How long the metadata service of EC2 is waited for. Where it exists it is next door; anywhere else nothing answers.
const METADATA: Duration = Duration::from_millis(800);

/// What helps who has no credentials.
const WHAT_TO_SET: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or `profile` or `access_key` \
                           in the endpoint's file";

/// Where the credentials of one endpoint come from.
#[derive(Debug)]
pub(crate) struct Source {
    endpoint: String,
    /// Whether the machine's own credentials may go to the endpoint's URL.
    is_trusted: bool,
    aws: Aws,
    /// The last ones, while they are valid.
    held: Mutex<Option<Credentials>>,
}

impl Source {
    /// For an endpoint whose URL has been decided.
    pub fn new(profile: &Profile) -> Self {
        let aws = profile.aws.clone().unwrap_or_default();
        Self {
            endpoint: profile.name.clone(),
            is_trusted: !aws.url_of_file || is_aws(&profile.url),
            aws,
            held: Mutex::default(),
        }
    }

    /// Credentials to sign with.
    ///
    /// # Errors
    /// When there are none, naming what to set.
    pub async fn get(&self) -> Result<Credentials, BackendError> {
        let fail = |what: String| BackendError::Config(format!("endpoint `{}`: {what}", self.endpoint));
        if let (Some(access), Some(secret)) = (&self.aws.access_key, &self.aws.secret_key) {
            let token = self.aws.session_token.as_ref().map(|t| t.expose().to_owned());
            return Ok(Credentials::new(
                access.expose(),
                secret.expose(),
                token,
                None,
                "endpoint file",
            ));
        }
        if !self.is_trusted {
            return Err(fail(
                "no key: its `url` is not AWS, so only `access_key` and `secret_key` (or `access_key_env` and \
                 `secret_key_env`) of its own file are used"
                    .into(),
            ));
        }
        let mut held = self.held.lock().await;
        let valid = |c: &Credentials| c.expiry().is_none_or(|end| end > SystemTime::now() + SOON);
        if let Some(credentials) = held.as_ref().filter(|c| valid(c)) {
            return Ok(credentials.clone());
        }
        let credentials = self.find().await.map_err(|error| match &error {
            CredentialsError::CredentialsNotLoaded(_) => fail(match &self.aws.profile {
                Some(profile) => format!(
                    "no key: the AWS profile `{profile}` has no credentials ({})",
                    causes(&error)
                ),
                None => format!("no key: {WHAT_TO_SET}"),
            }),
            _ => fail(format!(
                "no key: AWS credentials can't be had ({}); {WHAT_TO_SET}",
                causes(&error)
            )),
        })?;
        Ok(held.insert(credentials).clone())
    }

    /// Asks the named profile, else everything in the order of AWS.
    async fn find(&self) -> Result<Credentials, CredentialsError> {
        if self.aws.profile.is_none() {
            // The others need a client with the system's certificates.
            match EnvironmentVariableCredentialsProvider::new()
                .provide_credentials()
                .await
            {
                Err(CredentialsError::CredentialsNotLoaded(_)) => {}
                other => return other,
            }
        }
        let http = Builder::new()
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .build_https();
        let config = ProviderConfig::without_region()
            .with_region(self.aws.region.clone().map(Region::new))
            .with_http_client(http);
        let files = ProfileFileCredentialsProvider::builder().configure(&config);
        if let Some(profile) = &self.aws.profile {
            return files.profile_name(profile).build().provide_credentials().await;
        }
        let metadata = imds::Client::builder()
            .configure(&config)
            .connect_timeout(METADATA)
            .read_timeout(METADATA)
            .max_attempts(1)
            .build();
        CredentialsProviderChain::first_try("profile", files.build())
            .or_else(
                "web identity",
                WebIdentityTokenCredentialsProvider::builder()
                    .configure(&config)
                    .build(),
            )
            .or_else(
                "container",
                EcsCredentialsProvider::builder().configure(&config).build(),
            )
            .or_else(
                "metadata",
                ImdsCredentialsProvider::builder()
                    .configure(&config)
                    .imds_client(metadata)
                    .build(),
            )
            .provide_credentials()
            .await
    }
}
