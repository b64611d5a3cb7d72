//! What both ends of a network connection do in the same way, beside [frames](penstock_fabric::net::frames).
//!
//! | file | what |
//! |---|---|
//! | [`acceptor`] | connections that come in, and prove which job they belong to |
//! | [`items`] | messages about items |
//! | [`records`] | control messages of a stream and onto it |
//! | [`vigil`] | whether the other end lives, and showing it that this one does |
//! | [`dial`] | a worker's way to a server: connect, encrypt, prove identity |
//! | [`redial`] | the same again, after a connection has ended |
//! | [`travel`] | which codecs and filters there are |
//! | [`random`] | nonces |

pub(crate) mod acceptor;
pub(crate) mod dial;
pub(crate) mod items;
pub(crate) mod random;
pub(crate) mod records;
pub(crate) mod redial;
pub(crate) mod travel;
pub(crate) mod vigil;

pub(crate) use penstock_fabric::net::Ended;
