//! Who pulls some elements waits for the chunks that they are in, and for no others.

mod common;

use common::raw::{Raw, say};
use common::{Cluster, NO_SETTINGS, bytes, declare, misses};
use penstock::worker::{Declaration, Tensor};
use penstock_kernels::{Dtype, Rule};
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::message::{Answer, Ask};
use penstock_proto::submission::Submission;
use std::time::Duration;

/// Of 4 KiB each.
const CHUNKS: u64 = 6;
const ELEMENTS: u64 = 512 * CHUNKS;

fn first_of(tensor: &Tensor, chunk: u64, timeout: Option<Duration>) -> Result<f64, penstock::worker::Error> {
    let mut out = [0; 8];
    tensor.pull_sparse(&[512 * chunk], 1, &mut out[..], None, timeout).map(|version| {
        assert_eq!(version, 1);
        f64::from_le_bytes(out)
    })
}

// It was waited for all of the server's part.
#[test]
fn on_one_host_who_pulls_an_element_waits_for_its_chunk_alone() {
    let cluster = Cluster::new(2, 1, &[("chunk_bytes", "4KiB")]);
    let job = cluster.join(0);
    let w = declare(&job, "w", ELEMENTS, Bsp);
    let other = Raw::join(&cluster, 1);
    let mut declaration = Declaration::new("w", &[ELEMENTS], Rule::Add);
    declaration.spec.dtype = Dtype::F64;
    let (answer, _) = say(&other.connection, 2, Ask::Declare { spec: declaration.spec, decided: None });
    assert!(matches!(answer, Answer::Declared { .. }), "{answer:?}");
    w.push(Some(&bytes(&[3.0; ELEMENTS as usize])), NO_SETTINGS, false, None).unwrap();
    let soon = Some(Duration::from_millis(50));
    misses(&[1], || first_of(&w, 2, soon));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| first_of(&w, 2, None));
        // Long enough for it to sleep.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        let skip = Submission::Skip { tensor: 0, first: 2, count: 1, stamp: 0, settings: NO_SETTINGS };
        other.submit(skip.encode());
        assert_eq!(waits.join().unwrap().unwrap(), 3.0);
        // Of the others none has the version.
        misses(&[1], || first_of(&w, 3, soon));
        misses(&[1], || w.pull_into(&mut [0; 8 * ELEMENTS as usize], None, soon));
    });
}
