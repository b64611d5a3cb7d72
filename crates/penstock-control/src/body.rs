//! Bodies of HTTP, read whole.

use crate::error::{Reason, Refusal};
use http_body_util::BodyExt;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::HeaderMap;

/// Bytes before each message.
pub(crate) const FRAME: usize = 5;

/// Why a body was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// It broke off.
    Off,
    /// It has more bytes than allowed.
    Long,
}

impl Broken {
    /// What to tell a caller whose request may have at most `most` bytes.
    pub(crate) fn of_request(self, most: usize) -> Status {
        match self {
            Self::Off => Status::cancelled("the request broke off"),
            Self::Long => {
                let message = format!("expected a request of at most {most} bytes, got more");
                Refusal::new(Reason::Invalid, message).into()
            }
        }
    }
}

/// A body of one message of at most `most` bytes, in one piece (very many small ones would take very much memory), and its
/// trailers.
pub(crate) async fn read(mut body: Body, most: usize) -> Result<(Bytes, HeaderMap), Broken> {
    let (mut whole, mut trailers) = (Vec::new(), HeaderMap::new());
    while let Some(frame) = body.frame().await {
        match frame.map_err(|_| Broken::Off)?.into_data() {
            Ok(part) if whole.len() + part.len() > most.saturating_add(FRAME) => return Err(Broken::Long),
            Ok(part) => whole.extend_from_slice(&part),
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    Ok((whole.into(), trailers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::channel::Channel;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A frame of one byte, which is counted as long as it is there.
    struct Piece(Arc<AtomicUsize>);

    impl AsRef<[u8]> for Piece {
        fn as_ref(&self) -> &[u8] {
            b"x"
        }
    }

    impl Drop for Piece {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads a body of `frames` such frames; also says how many there were at once, and how many were sent.
    async fn read_pieces(frames: usize, most: usize) -> (Result<Bytes, Broken>, usize, usize) {
        let (mut sender, body) = Channel::<Bytes, Status>::new(1);
        let there = Arc::new(AtomicUsize::new(0));
        let send = async {
            let mut at_once = 0;
            for sent in 0..frames {
                at_once = at_once.max(there.fetch_add(1, Ordering::Relaxed));
                let piece = Bytes::from_owner(Piece(Arc::clone(&there)));
                if sender.send_data(piece).await.is_err() {
                    return (at_once, sent);
                }
            }
            drop(sender);
            (at_once, frames)
        };
        let (read, (at_once, sent)) = tokio::join!(read(Body::new(body), most), send);
        (read.map(|(whole, _)| whole), at_once, sent)
    }

    #[test]
    fn a_body_of_very_many_small_frames_takes_no_more_than_its_bytes() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (whole, at_once, _) = runtime.block_on(read_pieces(5000 + FRAME, 5000));
        assert_eq!(whole.unwrap().len(), 5000 + FRAME);
        assert!(at_once < 8, "{at_once} frames are kept");
        let (refused, _, sent) = runtime.block_on(read_pieces(100_000, 5000));
        assert_eq!(refused, Err(Broken::Long));
        assert!(sent < 5100, "{sent} frames are read");
    }
}
