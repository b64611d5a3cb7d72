//! What the nodes promise over the real memory.
//!
//! | file | what |
//! |---|---|
//! | `rows.rs` | which rows come to whom |
//! | `flushes.rs` | when a flush comes back |
//! | `producers.rs` | whom a producer delays that brings nothing, no whole rows, or old ones |
//! | `kept.rs` | what a peer makes a node keep |
//! | `wanted.rs` | what it costs to put together what is wanted of a source |
//! | `net.rs` | a home, its peers, and what lies between them |
//! | `heap.rs` | how much memory they take |

mod flushes;
mod heap;
mod kept;
mod net;
mod producers;
mod rows;
mod wanted;
