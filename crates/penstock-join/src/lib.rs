//! How processes that were started together become one job. Python's face and C's both use it, so the workers of one job may be
//! written in either.
//!
//! | module | what it does |
//! |---|---|
//! | [`exchange`] | every process gives a short message and gets everyone's, or the one error that ends the attempt for all |
//! | [`tcp`] | our own way to exchange: rank 0 listens, the others come, and each side proves that it knows the job's secret |
//! | [`introduce`] | what they say first, and what all conclude from it: which start servers |
//! | [`way`] | which way a process joins: servers that are named, a manager, meeting the others, or alone |
//! | [`launcher`] | what the environment says: which of how many processes this is, of which job |
//! | [`address`] | how other hosts reach this one |
//!
//! Nothing here speaks to a user: errors carry who, what was expected and what came, and each face adds its hints in
//! its own language.

pub mod address;
pub mod exchange;
pub mod introduce;
pub mod launcher;
pub mod patience;
mod resolve;
pub mod tcp;
pub mod way;
