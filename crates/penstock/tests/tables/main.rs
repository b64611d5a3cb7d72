//! Tables of items over real servers, by every way that workers reach them: what a get promises, whatever else happens.
//!
//! | file | what |
//! |---|---|
//! | `promises.rs` | what a get promises: age, wholeness, barriers, views, versions |
//! | `leaving.rs` | producers that leave, are lost or were away, and what becomes of their rows |
//! | `waiting.rs` | gets that wait in vain say for what |
//! | `declaring.rs` | what is refused, what does not fit, and what a second call makes |
//! | `dropping.rs` | memory and names come back, and whoever waits hears of it |
//! | `rig.rs` | declarations, sets and gets as these tests use them |

#[path = "../common/mod.rs"]
mod common;
mod declaring;
mod dropping;
mod leaving;
mod promises;
mod rig;
mod waiting;
