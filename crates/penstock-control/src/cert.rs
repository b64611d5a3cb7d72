//! A development CA and certificates below it (ECDSA P-256): what `penstock cert` does.
//!
//! The CA's name and the way its key identifies it are fixed, so that its key alone is enough to sign more certificates
//! later, and no certificate has to be parsed.

use crate::error::Error;
use crate::secret;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Longest validity, in days, of a certificate; the CA has it always.
pub const MAX_DAYS: u32 = 3650;
/// The CA's name.
const CA_NAME: &str = "Penstock development CA";
/// Clocks of hosts may differ by this much.
const SKEW: Duration = Duration::from_secs(3600);

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The CA's certificate: what clients are given.
    pub ca: PathBuf,
    /// Whether the CA was there already.
    pub ca_kept: bool,
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Makes the certificate `name.pem` and its key `name.key` for `hosts` in `folder`, below the CA that stands there
/// (`ca.pem`, `ca.key`) or, if none does, below a new one.
///
/// Nothing is replaced unless `force`, and the CA never is.
pub fn make(folder: &Path, name: &str, hosts: &[String], days: u32, force: bool) -> Result<Files, Error> {
    check(name, hosts, days)?;
    let file = |path: &Path, reason: String| Error::File { path: path.to_owned(), reason };
    let files = Files {
        ca: folder.join("ca.pem"),
        ca_kept: folder.join("ca.key").exists(),
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}.key")),
    };
    if !force && let Some(taken) = [&files.certificate, &files.key].into_iter().find(|path| path.exists()) {
        return Err(file(taken, "already exists, and is replaced only with --force".to_owned()));
    }
    let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
    let distrusted = made.and_then(|()| secret::distrust_folder(folder));
    if let Some(reason) = distrusted.map_err(|error| file(folder, error.to_string()))? {
        return Err(untrusted(folder, &reason));
    }
    let ca_key = folder.join("ca.key");
    let failed = |error: rcgen::Error| file(&files.certificate, error.to_string());
    let authority = if files.ca_kept {
        // Whoever knows its key is believed by all who are given the certificate.
        let trusted = |path: &Path| match secret::read_trusted(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(file(path, "is missing, though the CA's other file is there".to_owned()))
            }
            Err(error) => Err(file(path, error.to_string())),
            Ok(found) => found.map_err(|reason| untrusted(path, &reason)),
        };
        let (text, _) = (trusted(&ca_key)?, trusted(&files.ca)?);
        KeyPair::from_pem(&String::from_utf8_lossy(&text))
            .map_err(|_| file(&ca_key, "expected a private key as PEM".to_owned()))?
    } else {
        let key = KeyPair::generate().map_err(failed)?;
        let own = authority_params().self_signed(&key).map_err(failed)?;
        write(&files.ca, own.pem().as_bytes(), false, 0o644)?;
        write(&ca_key, key.serialize_pem().as_bytes(), false, 0o600)?;
        key
    };
    let issuer = Issuer::new(authority_params(), authority);
    let key = KeyPair::generate().map_err(failed)?;
    let signed =
        leaf_params(name, hosts, days).and_then(|params| params.signed_by(&key, &issuer)).map_err(failed)?;
    write(&files.key, key.serialize_pem().as_bytes(), force, 0o600)?;
    write(&files.certificate, signed.pem().as_bytes(), force, 0o644)?;
    Ok(files)
}

fn untrusted(path: &Path, reason: &str) -> Error {
    let reason = format!(
        "a CA here is not to be trusted: {reason}; give a new folder of your own, not on a mount that gives files another owner or \
         lets everybody write"
    );
    Error::File { path: path.to_owned(), reason }
}

fn write(path: &Path, bytes: &[u8], replace: bool, mode: u32) -> Result<(), Error> {
    secret::write(path, bytes, replace, mode)
        .map_err(|error| Error::File { path: path.to_owned(), reason: error.to_string() })
}

fn check(name: &str, hosts: &[String], days: u32) -> Result<(), Error> {
    let refuse = |expected: &str, got: String| Err(Error::Certificate { expected: expected.to_owned(), got });
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.starts_with('.') || name == "ca" || !name.bytes().all(plain) {
        return refuse("a name of letters, digits, `.`, `_` and `-`, other than `ca`", format!("`{name}`"));
    }
    if hosts.is_empty() {
        return refuse("at least one host that the certificate is for", "none".to_owned());
    }
    if let Some(host) =
        hosts.iter().find(|host| host.is_empty() || !host.bytes().all(|b| plain(b) || b == b':' || b == b'*'))
    {
        return refuse("names or IP addresses of hosts", format!("`{host}`"));
    }
    if !(1..=MAX_DAYS).contains(&days) {
        return refuse(&format!("a validity of 1 to {MAX_DAYS} days"), days.to_string());
    }
    Ok(())
}

fn named(name: &str, days: u32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    params.not_before = (now - SKEW).into();
    params.not_after = (now + Duration::from_secs(u64::from(days) * 24 * 3600)).into();
    params
}

fn authority_params() -> CertificateParams {
    let mut params = named(CA_NAME, MAX_DAYS);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn leaf_params(name: &str, hosts: &[String], days: u32) -> Result<CertificateParams, rcgen::Error> {
    // Host names and IP addresses are told apart in there.
    let mut params = CertificateParams::new(hosts.to_vec())?;
    let CertificateParams { distinguished_name, not_before, not_after, .. } = named(name, days);
    (params.distinguished_name, params.not_before, params.not_after) =
        (distinguished_name, not_before, not_after);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn make_in(folder: &Path, name: &str, force: bool) -> Result<Files, Error> {
        make(folder, name, &["localhost".to_owned(), "127.0.0.1".to_owned()], 30, force)
    }

    #[test]
    fn keys_are_their_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let files = make_in(folder.path(), "server", false).unwrap();
        for key in [&files.key, &folder.path().join("ca.key")] {
            assert_eq!(std::fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn nothing_is_replaced_unasked_and_the_ca_never() {
        let folder = tempfile::tempdir().unwrap();
        let first = make_in(folder.path(), "server", false).unwrap();
        let read = |path: &Path| std::fs::read(path).unwrap();
        let (ca, certificate) = (read(&first.ca), read(&first.certificate));
        let error = make_in(folder.path(), "server", false).unwrap_err();
        assert!(error.to_string().contains("--force"), "{error}");
        assert_eq!(read(&first.certificate), certificate);
        let again = make_in(folder.path(), "server", true).unwrap();
        assert!(again.ca_kept && !first.ca_kept);
        assert_eq!(read(&first.ca), ca);
        assert_ne!(read(&first.certificate), certificate);
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "a skip is said aloud")]
    fn a_ca_that_another_user_may_have_made_signs_nothing() {
        let folder = tempfile::tempdir().unwrap();
        make_in(folder.path(), "first", false).unwrap();
        let refused = |path: &Path| {
            let error = make_in(folder.path(), "second", false).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()) && error.contains("not to be trusted"), "{error}");
            assert!(!folder.path().join("second.pem").exists());
        };
        let (key, ca) = (folder.path().join("ca.key"), folder.path().join("ca.pem"));
        for path in [&key, &ca] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
            refused(path);
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
        }
        let own = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None);
        if own(&key, 1001).and_then(|()| own(&key, 0)).is_err() {
            eprintln!("SKIPPED: only root can give a file to another user");
            return;
        }
        for path in [&key, &ca, &folder.path().to_owned()] {
            own(path, 1001).unwrap();
            refused(path);
            own(path, 0).unwrap();
        }
        // A link says where to look.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(1001), None).unwrap();
        for given in [link.clone(), link.join(""), link.join(".")] {
            let error = make_in(&given, "second", false).unwrap_err().to_string();
            assert!(error.contains("a link that belongs to user 1001"), "{error}");
        }
        std::os::unix::fs::lchown(&link, Some(0), None).unwrap();
        make_in(&link, "second", false).unwrap();
    }

    #[test]
    fn no_ca_is_made_or_used_in_a_folder_that_everybody_may_write() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |mode| std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
        for made in [false, true] {
            mode(0o777);
            let error = make_in(folder.path(), "server", false).unwrap_err().to_string();
            assert!(
                error.contains("every user may write it") && error.contains("a new folder of your own"),
                "{error}"
            );
            assert_eq!(folder.path().join("ca.key").exists(), made);
            mode(0o700);
            if !made {
                make_in(folder.path(), "first", false).unwrap();
            }
        }
    }

    /// Opening it waited for whoever writes to it.
    #[test]
    fn a_ca_that_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        make_in(folder.path(), "first", false).unwrap();
        let key = folder.path().join("ca.key");
        std::fs::remove_file(&key).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &key, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let error = make_in(folder.path(), "second", false).unwrap_err().to_string();
        assert!(error.contains("no ordinary file"), "{error}");
    }

    #[test]
    fn nonsense_is_refused_before_a_file_is_written() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("new");
        let host = ["localhost".to_owned()];
        for (name, hosts, days) in [
            ("../server", &host[..], 1),
            ("ca", &host, 1),
            ("", &host, 1),
            ("server", &[], 1),
            ("server", &["a b".to_owned()], 1),
            ("server", &host, 0),
            ("server", &host, MAX_DAYS + 1),
        ] {
            let refused = make(&folder, name, hosts, days, false).unwrap_err();
            assert!(matches!(refused, Error::Certificate { .. }), "{refused}");
            assert!(refused.hint().is_some_and(|hint| hint.contains("--host")));
        }
        assert!(!folder.exists());
    }
}
