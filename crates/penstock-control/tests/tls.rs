//! TLS 1.3 over real connections, with certificates that `cert` made.

mod common;

use common::{DEADLINE, Memory, Site};
use penstock_control::agent::Agent;
use penstock_control::client::{Client, JobSpec, Target, Worker};
use penstock_control::manager::{Config, Manager, StartError};
use penstock_control::{Error, cert};
use std::path::Path;

fn certified(folder: &Path) -> Site {
    let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let files = cert::make(folder, "manager", &hosts, 30, false).unwrap();
    Site::with(|config| {
        config.certificate = Some(files.certificate);
        config.key = Some(files.key);
    })
}

fn trusting(site: &Site, ca: &Path) -> Target {
    Target { ca: Some(ca.to_owned()), ..Target::new(&site.address) }
}

#[test]
fn a_job_is_created_and_joined_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let site = certified(folder.path());
    let target = trusting(&site, &folder.path().join("ca.pem"));
    let client = Client::new(target.clone()).unwrap();
    assert_eq!(client.health(), Ok(true));
    let spec = JobSpec { memory: 10, ..JobSpec::new("j", 1) };
    let created = client.create_job(&site.admin(), &spec).unwrap();
    let _agent = Agent::start(&target, site.token("server.token"), Memory::new("/a.sock", 100)).unwrap();
    let place = client.connect("j", &created.secret, &Worker::default(), DEADLINE).unwrap();
    assert_eq!(place.servers, ["/a.sock"]);
    let by_name = Target { address: site.address.replace("127.0.0.1", "localhost"), ..target };
    assert_eq!(Client::new(by_name).unwrap().health(), Ok(true));
}

#[test]
fn a_certificate_of_another_ca_or_for_another_host_is_not_trusted() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let site = certified(folder.path());
    cert::make(other.path(), "other", &["127.0.0.1".to_owned()], 30, false).unwrap();
    let error = Client::new(trusting(&site, &other.path().join("ca.pem"))).unwrap().health().unwrap_err();
    assert!(matches!(&error, Error::Untrusted { .. }), "{error}");
    assert!(error.hint().unwrap().contains("--ca"));
    // The right CA, but the certificate names 127.0.0.1 and localhost only.
    let listening = Site::with(|config| {
        config.listen = "127.0.0.2:0".to_owned();
        config.certificate = Some(folder.path().join("manager.pem"));
        config.key = Some(folder.path().join("manager.key"));
    });
    let client = Client::new(trusting(&listening, &folder.path().join("ca.pem"))).unwrap();
    let error = client.health().unwrap_err();
    assert!(matches!(&error, Error::Untrusted { .. }), "{error}");
    // No client waits for a manager that will not be trusted later either.
    let secret = penstock_proto::message::Secret([0; 32]);
    let error = client.connect("j", &secret, &Worker::default(), DEADLINE * 100).unwrap_err();
    assert!(matches!(&error, Error::Untrusted { .. }), "{error}");
}

#[test]
fn plain_text_gets_no_answer_where_tls_is_spoken_nor_the_other_way_round() {
    let folder = tempfile::tempdir().unwrap();
    let site = certified(folder.path());
    assert!(Client::new(Target::new(&site.address)).unwrap().health().is_err());
    let plain = Site::new();
    assert!(Client::new(trusting(&plain, &folder.path().join("ca.pem"))).unwrap().health().is_err());
}

#[test]
fn with_a_certificate_other_hosts_are_listened_to() {
    let folder = tempfile::tempdir().unwrap();
    let files = cert::make(folder.path(), "manager", &["127.0.0.1".to_owned()], 30, false).unwrap();
    let config = Config {
        certificate: Some(files.certificate),
        key: Some(files.key),
        ..Config::new("0.0.0.0:0", folder.path().join("state"))
    };
    let manager = Manager::start(config.clone()).unwrap();
    let address = format!("127.0.0.1:{}", manager.address().port());
    let target = Target { ca: Some(files.ca), ..Target::new(&address) };
    assert_eq!(Client::new(target).unwrap().health(), Ok(true));
    let half = Manager::start(Config { key: None, ..config }).unwrap_err();
    assert_eq!(half, StartError::HalfACertificate { got: "certificate" });
}

#[test]
fn a_file_that_is_no_certificate_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    for text in ["", "hello", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&path, text).unwrap();
        let target = Target { ca: Some(path.clone()), ..Target::new("127.0.0.1:1") };
        let error = Client::new(target).unwrap_err();
        assert!(matches!(&error, Error::File { path: at, .. } if *at == path), "{text:?}: {error}");
    }
}
