//! Every variant against the oracle, bit for bit, and the promises of the public functions.

mod chunk;
mod product;
mod promises;
mod quantized;
mod scatter;
mod sparse;
mod steps;
mod summed;
mod sums;
mod torch;
mod variants;
