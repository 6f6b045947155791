//! ID tokens and lives of tokens, below what the public interface shows.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use decanus_base::Secret;
use jsonwebtoken::jwk::JwkSet;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

use super::apply::ServiceKey;
use super::jwt::{Doubt, Expected, assertion, sign, verify};
use super::store::StoredToken;
use super::tokens::is_fresh;
use super::{mask, now};

const PEM: &str = include_str!("../../tests/fixtures/auth/rsa.pem");
const MODULUS: &str = include_str!("../../tests/fixtures/auth/rsa.n");

fn rsa_jwk() -> Value {
    json!({"kty": "RSA", "kid": "r", "use": "sig", "alg": "RS256", "n": MODULUS.trim(), "e": "AQAB"})
}

fn keys(list: &[Value]) -> JwkSet {
    serde_json::from_value(json!({"keys": list})).unwrap()
}

fn good() -> Value {
    json!({"iss": "https://i.test", "aud": "c", "sub": "ada", "nonce": "n", "iat": now(), "exp": now() + 300})
}

fn with(changes: Value) -> Value {
    let mut claims = good();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => claims.as_object_mut().unwrap().remove(name),
            other => claims.as_object_mut().unwrap().insert(name.clone(), other.clone()),
        };
    }
    claims
}

fn check(token: &Secret, set: &JwkSet) -> Result<String, Doubt> {
    let expected = Expected {
        issuer: "https://i.test",
        client_id: "c",
        nonce: Some("n"),
        subject: None,
    };
    verify(token, set, &expected)
}

fn rs256(kid: Option<&str>, claims: &Value) -> Secret {
    sign(kid, &Secret::new(PEM), claims).unwrap()
}

fn raw(header: &Value, claims: &Value, signature: &[u8]) -> Secret {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    Secret::new(format!(
        "{}.{}.{}",
        part(header),
        part(claims),
        URL_SAFE_NO_PAD.encode(signature)
    ))
}

#[test]
fn a_good_id_token_names_its_user() {
    let set = keys(&[rsa_jwk(), json!({"kty": "strange", "kid": "s"})]);
    assert_eq!(check(&rs256(Some("r"), &good()), &set).unwrap(), "ada");
    assert_eq!(check(&rs256(None, &good()), &set).unwrap(), "ada");
    let several = with(json!({"aud": ["c", "d"], "azp": "c"}));
    assert_eq!(check(&rs256(Some("r"), &several), &set).unwrap(), "ada");
    // Clocks differ a little.
    let close = with(json!({"exp": now() - 30, "iat": now() + 30}));
    assert_eq!(check(&rs256(Some("r"), &close), &set).unwrap(), "ada");
}

#[test]
fn es256_is_verified_too() {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
    let point = pair.public_key().as_ref();
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let jwk = json!({"kty": "EC", "crv": "P-256", "kid": "e", "x": encode(&point[1..33]), "y": encode(&point[33..])});
    let unsigned = raw(&json!({"alg": "ES256", "kid": "e"}), &good(), b"");
    let message = unsigned.expose().trim_end_matches('.').to_owned();
    let signature = pair.sign(&random, message.as_bytes()).unwrap();
    let token = |signature: &[u8]| Secret::new(format!("{message}.{}", encode(signature)));
    let set = keys(&[jwk]);
    assert_eq!(check(&token(signature.as_ref()), &set).unwrap(), "ada");
    let mut broken = signature.as_ref().to_vec();
    broken[7] ^= 1;
    for bad in [broken.as_slice(), &[0; 64], b""] {
        assert!(matches!(check(&token(bad), &set), Err(Doubt::No(why)) if why.contains("signature")));
    }
}

#[test]
fn what_is_wrong_with_an_id_token() {
    let set = keys(&[rsa_jwk()]);
    for (changes, words) in [
        (json!({"iss": "https://evil.test"}), "another issuer"),
        (json!({"iss": null}), "no iss"),
        (json!({"aud": "d"}), "another client"),
        (json!({"aud": null}), "not accepted"),
        (json!({"aud": ["c", "d"]}), "azp"),
        (json!({"azp": "d"}), "azp"),
        (json!({"exp": now() - 120}), "expired"),
        (json!({"exp": null}), "no exp"),
        (json!({"exp": "soon"}), "not accepted"),
        (json!({"nbf": now() + 120}), "nbf"),
        (json!({"iat": now() + 120}), "future"),
        (json!({"iat": null}), "not accepted"),
        (json!({"nonce": "other"}), "nonce"),
        (json!({"nonce": null}), "nonce"),
        (json!({"sub": null}), "not accepted"),
        (json!({"sub": ""}), "sub"),
    ] {
        match check(&rs256(Some("r"), &with(changes.clone())), &set) {
            Err(Doubt::No(why)) => assert!(why.contains(words), "{changes}: {why}"),
            other => panic!("{changes}: {other:?}"),
        }
    }
    let other_user = Expected {
        issuer: "https://i.test",
        client_id: "c",
        nonce: None,
        subject: Some("bob"),
    };
    assert!(matches!(verify(&rs256(None, &good()), &set, &other_user), Err(Doubt::No(why)) if why.contains("sub")));
}

#[test]
fn tricks_with_algorithms_and_keys() {
    let set = keys(&[rsa_jwk()]);
    let refused = |token: &Secret| match check(token, &set) {
        Err(Doubt::No(why)) => why,
        other => panic!("{other:?}"),
    };
    for none in ["none", "None", "NONE", "nOnE"] {
        refused(&raw(&json!({"alg": none, "kid": "r"}), &good(), b""));
    }
    // The public key as the secret of an HMAC.
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, MODULUS.trim().as_bytes());
    let unsigned = raw(&json!({"alg": "HS256", "kid": "r"}), &good(), b"");
    let tag = ring::hmac::sign(&key, unsigned.expose().trim_end_matches('.').as_bytes());
    let why = refused(&raw(&json!({"alg": "HS256", "kid": "r"}), &good(), tag.as_ref()));
    assert!(why.contains("HS256"), "{why}");
    // Changed after it was signed.
    let token = rs256(Some("r"), &good());
    let parts: Vec<&str> = token.expose().split('.').collect();
    let claims = URL_SAFE_NO_PAD.encode(with(json!({"sub": "eve"})).to_string());
    let why = refused(&Secret::new(format!("{}.{claims}.{}", parts[0], parts[2])));
    assert!(why.contains("signature"), "{why}");
    for no_token in ["", ".", "..", "a.b.c", "a.b"] {
        refused(&Secret::new(no_token));
    }
    // A key of another name, use, kind or algorithm is no key for this.
    let unknown = |jwk: Value| assert_eq!(check(&token, &keys(&[jwk])), Err(Doubt::UnknownKey));
    let mut jwk = rsa_jwk();
    jwk["kid"] = "other".into();
    unknown(jwk);
    let mut jwk = rsa_jwk();
    jwk["use"] = "enc".into();
    unknown(jwk);
    let mut jwk = rsa_jwk();
    jwk["alg"] = "RS512".into();
    unknown(jwk);
    unknown(json!({"kty": "oct", "kid": "r", "k": "AAAA"}));
    assert_eq!(check(&token, &keys(&[])), Err(Doubt::UnknownKey));
}

#[test]
fn assertions_for_google() {
    let claims = assertion("a@p.test", "https://t.test/token", "x y", Some("u@p.test"), 1_000_000);
    assert_eq!(
        claims,
        json!({"iss": "a@p.test", "aud": "https://t.test/token", "iat": 999_990, "exp": 1_003_590, "scope": "x y", "sub": "u@p.test"})
    );
    let read = |value: Value| ServiceKey::read(&Secret::new(value.to_string())).map(|k| k.token_url);
    let whole = json!({"type": "service_account", "client_email": "a@p.test", "private_key": PEM});
    assert_eq!(read(whole.clone()).unwrap(), "https://oauth2.googleapis.com/token");
    for (field, value, words) in [
        ("type", json!("authorized_user"), "type"),
        ("client_email", json!(""), "client_email"),
        ("private_key", Value::Null, "private_key"),
        ("token_uri", json!("http://evil.test/"), "token_uri"),
    ] {
        let mut wrong = whole.clone();
        wrong[field] = value;
        assert!(read(wrong).unwrap_err().contains(words), "{field}");
    }
    assert!(
        sign(None, &Secret::new("-----BEGIN SENTINEL"), &json!({}))
            .unwrap_err()
            .contains("no RSA key")
    );
}

#[test]
fn tokens_are_renewed_before_they_expire() {
    let token = |issued_at: i64, expires_at: Option<i64>| StoredToken {
        fingerprint: String::new(),
        access_token: "t".to_owned(),
        refresh_token: None,
        issued_at,
        expires_at,
        scope: None,
        subject: None,
    };
    assert!(is_fresh(&token(0, None), 1 << 40));
    let hour = token(1000, Some(4600));
    assert!(is_fresh(&hour, 1000) && is_fresh(&hour, 4539) && !is_fresh(&hour, 4540) && !is_fresh(&hour, 4600));
    // A short life is not spent before it begins.
    let short = token(1000, Some(1020));
    assert!(is_fresh(&short, 1014) && !is_fresh(&short, 1015));
    // A clock that was set back by more than two machines differ.
    assert!(is_fresh(&hour, 950) && !is_fresh(&hour, 900));
}

#[test]
fn masks_show_four_characters_of_long_secrets() {
    assert_eq!(mask("abcdefghijkl"), "••••••••ijkl");
    for hidden in ["short", "abcdefghijk", "", "-----BEGIN KEY-----\nabc\n"] {
        assert_eq!(mask(hidden), "••••••••", "{hidden}");
    }
}
