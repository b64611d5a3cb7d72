//! A second codec and a second filter, for tests alone: they prove that the seams carry more than what travels raw.

pub(crate) mod changes;
pub(crate) mod loud;
