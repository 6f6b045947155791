//! Signed tokens: those of OpenID Connect are verified, those for Google are made. The cryptography is ring's, which TLS
//! uses too.

use std::sync::Once;

use decanus_base::Secret;
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, JwkSet, PublicKeyUse, ThumbprintHash};
use jsonwebtoken::signature::{Error as SignatureError, Signer, Verifier};
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey, Header, Validation, decode, decode_header,
};
use ring::rand::SystemRandom;
use ring::signature::{self as rings, RsaKeyPair, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::{Value, json};

/// How far the clocks of two machines may be apart, in seconds.
pub(crate) const SKEW: u64 = 60;
/// The algorithms of ID tokens. Those with a shared secret are not among them: a public key must never be taken for one.
const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
];

/// What an ID token must be.
pub(crate) struct Expected<'a> {
    pub issuer: &'a str,
    pub client_id: &'a str,
    pub nonce: Option<&'a str>,
    pub subject: Option<&'a str>,
}

/// Why an ID token is not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// No key of the issuer has this name; it may be newer than the list.
    UnknownKey,
    /// It is not what it should be.
    No(String),
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    aud: Value,
    #[serde(default)]
    azp: Option<String>,
    #[serde(default)]
    nonce: Option<String>,
    iat: Value,
}

/// Checks an ID token, and gives its subject.
pub(crate) fn verify(token: &Secret, keys: &JwkSet, expected: &Expected<'_>) -> Result<String, Doubt> {
    install();
    let no = |why: &str| Doubt::No(format!("the ID token is not accepted: {why}"));
    // `none` is no algorithm that the parser knows.
    let header = decode_header(token.expose().as_bytes()).map_err(|_| no("it is no signed token of a known kind"))?;
    if !ALGORITHMS.contains(&header.alg) {
        return Err(no(&format!("it is signed by {:?}, which proves nothing", header.alg)));
    }
    let fits = |key: &&Jwk| {
        let family = match &key.algorithm {
            AlgorithmParameters::RSA(_) => Some(AlgorithmFamily::Rsa),
            AlgorithmParameters::EllipticCurve(_) => Some(AlgorithmFamily::Ec),
            _ => None,
        };
        let for_signing = key
            .common
            .public_key_use
            .as_ref()
            .is_none_or(|u| *u == PublicKeyUse::Signature);
        // The two enums have the same names.
        let same = key
            .common
            .key_algorithm
            .as_ref()
            .is_none_or(|a| format!("{a:?}") == format!("{:?}", header.alg));
        family == Some(header.alg.family()) && for_signing && same
    };
    let candidates: Vec<&Jwk> = match &header.kid {
        Some(kid) => keys
            .keys
            .iter()
            .filter(|k| k.common.key_id.as_ref() == Some(kid))
            .filter(fits)
            .collect(),
        None => keys.keys.iter().filter(fits).collect(),
    };
    if candidates.is_empty() {
        return Err(Doubt::UnknownKey);
    }
    let mut validation = Validation::new(header.alg);
    validation.leeway = SKEW;
    validation.validate_nbf = true;
    validation.set_audience(&[expected.client_id]);
    validation.set_issuer(&[expected.issuer]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let mut fault = Doubt::UnknownKey;
    for key in candidates {
        let outcome =
            DecodingKey::from_jwk(key).and_then(|key| decode::<Claims>(token.expose().as_bytes(), &key, &validation));
        match outcome {
            Ok(data) => return claims(data.claims, expected).map_err(|why| no(&why)),
            Err(e) => fault = no(&reason(&e)),
        }
    }
    Err(fault)
}

/// What the library does not check.
fn claims(claims: Claims, expected: &Expected<'_>) -> Result<String, String> {
    if claims.aud.as_array().is_some_and(|a| a.len() > 1) && claims.azp.is_none() {
        return Err("it is for several clients and does not say which one asked (azp)".to_owned());
    }
    if claims.azp.is_some_and(|azp| azp != expected.client_id) {
        return Err("another client asked for it (azp)".to_owned());
    }
    if let Some(nonce) = expected.nonce
        && claims.nonce.as_deref() != Some(nonce)
    {
        return Err("its nonce is not that of this login".to_owned());
    }
    let now = jsonwebtoken::get_current_timestamp();
    if claims.iat.as_f64().is_none_or(|iat| iat > (now + SKEW) as f64) {
        return Err("it was issued in the future (iat), or does not say when".to_owned());
    }
    if claims.sub.is_empty() || expected.subject.is_some_and(|s| s != claims.sub) {
        return Err("it is about another user than before (sub)".to_owned());
    }
    Ok(claims.sub)
}

fn reason(error: &Error) -> String {
    match error.kind() {
        ErrorKind::InvalidSignature => "its signature is wrong".to_owned(),
        ErrorKind::ExpiredSignature => "it has expired (exp)".to_owned(),
        ErrorKind::ImmatureSignature => "it is not valid yet (nbf)".to_owned(),
        ErrorKind::InvalidIssuer => "it is of another issuer (iss)".to_owned(),
        ErrorKind::InvalidAudience => "it is for another client (aud)".to_owned(),
        ErrorKind::MissingRequiredClaim(claim) => format!("it has no {claim}"),
        // Other messages may hold pieces of the token.
        _ => "it, or the issuer's key, can't be read".to_owned(),
    }
}

/// Signs an assertion by RS256 with a private key in PEM.
pub(crate) fn sign(key_id: Option<&str>, pem: &Secret, claims: &Value) -> Result<Secret, String> {
    install();
    let key = EncodingKey::from_rsa_pem(pem.expose().as_bytes()).map_err(|_| "its private_key is no RSA key in PEM")?;
    let header = Header {
        kid: key_id.map(str::to_owned),
        ..Header::new(Algorithm::RS256)
    };
    let token = jsonwebtoken::encode(&header, claims, &key).map_err(|_| "its private_key can't sign")?;
    Ok(Secret::new(token))
}

/// The claims by which a service account asks for a token.
pub(crate) fn assertion(email: &str, audience: &str, scope: &str, subject: Option<&str>, now: i64) -> Value {
    // A clock that is a little ahead would sign in the server's future.
    let iat = now - 10;
    let mut claims = json!({"iss": email, "aud": audience, "iat": iat, "exp": iat + 3600, "scope": scope});
    if let Some(subject) = subject {
        claims["sub"] = subject.into();
    }
    claims
}

/// Has `jsonwebtoken` use ring. Another provider that somebody installed before is as good.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = PROVIDER.install_default();
    });
}

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils {
        rsa_pub_components_from_private_key: |_| Err(unused()),
        rsa_pub_components_from_public_key: |_| Err(unused()),
        ec_pub_components_from_private_key: |_, _| Err(unused()),
        ed_pub_components_from_private_key: |_, _| Err(unused()),
        compute_digest: |_, _: ThumbprintHash| Err(unused()),
    },
};

fn unused() -> Error {
    ErrorKind::InvalidAlgorithm.into()
}

struct RingSigner(RsaKeyPair);
struct RingVerifier(Algorithm, DecodingKey);

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    if *algorithm != Algorithm::RS256 || key.family() != AlgorithmFamily::Rsa {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    let pair = RsaKeyPair::from_der(key.as_bytes()).map_err(|_| ErrorKind::InvalidKeyFormat)?;
    Ok(Box::new(RingSigner(pair)))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if key.family() != algorithm.family() || !ALGORITHMS.contains(algorithm) {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(RingVerifier(*algorithm, key.clone())))
}

impl Signer<Vec<u8>> for RingSigner {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, SignatureError> {
        let mut out = vec![0; self.0.public().modulus_len()];
        self.0
            .sign(&rings::RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut out)
            .map_err(|_| SignatureError::new())?;
        Ok(out)
    }
}

impl JwtSigner for RingSigner {
    fn algorithm(&self) -> Algorithm {
        Algorithm::RS256
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        let rsa = match self.0 {
            Algorithm::RS256 => &rings::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::RS384 => &rings::RSA_PKCS1_2048_8192_SHA384,
            Algorithm::RS512 => &rings::RSA_PKCS1_2048_8192_SHA512,
            Algorithm::PS256 => &rings::RSA_PSS_2048_8192_SHA256,
            Algorithm::PS384 => &rings::RSA_PSS_2048_8192_SHA384,
            Algorithm::PS512 => &rings::RSA_PSS_2048_8192_SHA512,
            Algorithm::ES256 => return self.curve(&rings::ECDSA_P256_SHA256_FIXED, message, signature),
            Algorithm::ES384 => return self.curve(&rings::ECDSA_P384_SHA384_FIXED, message, signature),
            _ => return Err(SignatureError::new()),
        };
        match self.1.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(rsa, message, signature)
            }
            DecodingKeyKind::SecretOrDer(der) => UnparsedPublicKey::new(rsa, der).verify(message, signature),
        }
        .map_err(|_| SignatureError::new())
    }
}

impl RingVerifier {
    fn curve(
        &self,
        algorithm: &'static rings::EcdsaVerificationAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), SignatureError> {
        let DecodingKeyKind::SecretOrDer(point) = self.1.kind() else {
            return Err(SignatureError::new());
        };
        UnparsedPublicKey::new(algorithm, point)
            .verify(message, signature)
            .map_err(|_| SignatureError::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.0
    }
}
