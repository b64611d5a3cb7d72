//! What both ends of a network connection do alike.
//!
//! | file | what |
//! |---|---|
//! | [`frames`] | frames of a stream, payloads straight into their place; frames onto it, from where they stand |
//! | [`items`] | messages about items |
//! | [`records`] | control messages of a stream and onto it |
//! | [`dial`] | a worker's way to a server: connect, encrypt, prove who is there |
//! | [`random`] | nonces |

pub(crate) mod dial;
pub(crate) mod frames;
pub(crate) mod items;
pub(crate) mod random;
pub(crate) mod records;
