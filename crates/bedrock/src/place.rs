//! Where requests go: region and URL.

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::ProvideRegion;
use aws_config::profile::ProfileFileRegionProvider;
use decanus_backend::{BackendError, Profile};
use reqwest::Url;

/// The profile with region and URL decided: from the endpoint's file, the URL, the environment, or the AWS profile.
///
/// # Errors
/// When nothing names a region, or what does is none.
pub(crate) fn decide(profile: &Profile) -> Result<Profile, BackendError> {
    let fail = |what: String| BackendError::Config(format!("endpoint `{}`: {what}", profile.name));
    let mut decided = profile.clone();
    let mut aws = profile.aws.clone().unwrap_or_default();
    let url = Url::parse(&profile.url).ok();
    let region = aws.region.take();
    let region = region
        .or_else(|| region_of(url.as_ref()?.host_str()?))
        .or_else(|| configured(aws.profile.as_deref()));
    let is_needed = profile.url.is_empty() || profile.key.is_none();
    match &region {
        None if is_needed => {
            return Err(fail(
                "no region: set AWS_REGION, or `region` in the endpoint's file or in your AWS profile".into(),
            ));
        }
        // It becomes a part of a host's name.
        Some(name) if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') => {
            return Err(fail(format!("`{name}` is not the name of a region, such as eu-west-1")));
        }
        Some(name) if profile.url.is_empty() => {
            let domain = if name.starts_with("cn-") {
                "amazonaws.com.cn"
            } else {
                "amazonaws.com"
            };
            decided.url = format!("https://bedrock-runtime.{name}.{domain}");
            aws.url_of_file = false;
        }
        _ => {}
    }
    aws.region = region;
    decided.aws = Some(aws);
    Ok(decided)
}

/// Whether a URL leads to AWS, and nobody can listen in.
pub(crate) fn is_aws(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| {
        let host = url.host_str().unwrap_or_default();
        url.scheme() == "https"
            && [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"]
                .iter()
                .any(|d| host.ends_with(d))
    })
}

/// The region that a host of AWS is in.
fn region_of(host: &str) -> Option<String> {
    let rest = ["bedrock-runtime.", "bedrock-runtime-fips."]
        .iter()
        .find_map(|start| host.strip_prefix(start))?;
    let (region, domain) = rest.split_once('.')?;
    matches!(domain, "amazonaws.com" | "amazonaws.com.cn" | "api.aws").then(|| region.to_owned())
}

/// The region of AWS_REGION, AWS_DEFAULT_REGION or the AWS profile.
fn configured(profile: Option<&str>) -> Option<String> {
    let mut builder = ProfileFileRegionProvider::builder();
    if let Some(profile) = profile {
        builder = builder.profile_name(profile);
    }
    // Nothing is waited for: variables and files are read as they are.
    let region = futures::executor::block_on(async {
        match EnvironmentVariableRegionProvider::new().region().await {
            Some(region) => Some(region),
            None => builder.build().region().await,
        }
    });
    region
        .map(|r| r.to_string().trim().to_owned())
        .filter(|r| !r.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use decanus_backend::Aws;

    fn at(url: &str, region: Option<&str>) -> Result<(String, Option<String>), String> {
        let mut profile = Profile::new("e", "bedrock", "m");
        profile.url = url.into();
        profile.aws = Some(Aws {
            region: region.map(str::to_owned),
            ..Aws::default()
        });
        let decided = decide(&profile).map_err(|e| e.to_string())?;
        Ok((decided.url, decided.aws.and_then(|a| a.region)))
    }

    #[test]
    fn region_and_url_give_each_other() {
        let is = |url: &str, region: &str| Ok((url.to_owned(), Some(region.to_owned())));
        let us = "https://bedrock-runtime.us-east-1.amazonaws.com";
        assert_eq!(at("", Some("us-east-1")), is(us, "us-east-1"));
        let cn = "https://bedrock-runtime.cn-north-1.amazonaws.com.cn";
        assert_eq!(at("", Some("cn-north-1")), is(cn, "cn-north-1"));
        assert_eq!(at(us, None), is(us, "us-east-1"));
        assert_eq!(at(cn, None), is(cn, "cn-north-1"));
        // What the file says counts more.
        assert_eq!(at(us, Some("eu-west-1")), is(us, "eu-west-1"));
        let error = at("", Some("eu.example.test/")).unwrap_err();
        assert!(
            error.contains("endpoint `e`: `eu.example.test/` is not the name"),
            "{error}"
        );
    }

    #[test]
    fn aws_is_known_by_its_domains() {
        for (url, expected) in [
            ("https://bedrock-runtime.us-east-1.amazonaws.com", true),
            ("https://vpce-1.bedrock-runtime.us-east-1.vpce.amazonaws.com", true),
            ("https://bedrock-runtime.us-east-1.api.aws", true),
            ("http://bedrock-runtime.us-east-1.amazonaws.com", false),
            ("https://amazonaws.com.example.test", false),
            ("https://xamazonaws.com", false),
            ("http://127.0.0.1:1", false),
        ] {
            assert_eq!(is_aws(url), expected, "{url}");
        }
    }
}
