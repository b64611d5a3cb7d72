//! Which codecs and filters this process has: a tensor's declaration is looked up here once, at both ends.

/// All that there are.
#[cfg(not(test))]
pub(crate) const KNOWN: penstock_proto::travel::Registry = penstock_proto::travel::Registry::ALL;

/// And those that only tests have.
#[cfg(test)]
pub(crate) use members::KNOWN;

#[cfg(test)]
pub(crate) mod members;
#[cfg(test)]
mod tests;
