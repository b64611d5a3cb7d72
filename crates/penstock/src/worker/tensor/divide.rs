//! Contributions of which the program itself says what is sent: a filter that it brings.
//!
//! The program's code runs for as long as it likes, may fail, and may call the job. So nothing is locked meanwhile, and nothing
//! changed: it is given a copy of all that is due ([`Tensor::due`]), and what it has made of that is contributed in one step, as
//! any other contribution ([`Tensor::push_divided`]). If something else was contributed in between, or the clock went on, it is
//! refused, and the program begins again with what is due now.

use super::Tensor;
use super::push::Given;
use crate::worker::Error;
use crate::worker::link::lock;
use penstock_fabric::sync::Ordering;
use penstock_kernels::{Foreign, ForeignMut, Settings, accumulate_into};
use std::time::Duration;

/// What a program has made of what was due.
#[derive(Debug, Clone, Copy)]
pub struct Divided<'a> {
    /// What is sent: an element each.
    pub sent: Foreign<'a>,
    /// The rest, which is carried: an accumulator each.
    pub kept: Foreign<'a>,
    /// Whether the program pushed an array, or what stood in the lane: else the lane holds no contribution afterwards.
    pub is_array: bool,
}

impl Tensor {
    /// Writes into `out`, an accumulator for each element, what would be due now if `data`, or what stands in the lane, were the last
    /// contribution of this iteration: with the parts that stand in the lane, and with what is carried. Waits as a push does, and
    /// changes nothing. Returns the clock that the contribution would be stamped with, and what [`Tensor::push_divided`] is to be
    /// told.
    ///
    /// # Panics
    ///
    /// If the tensor has no filter of contributions.
    pub fn due(
        &self,
        data: Option<Foreign<'_>>,
        mut out: ForeignMut<'_>,
        settings: Settings,
        timeout: Option<Duration>,
    ) -> Result<(u64, u64), Error> {
        let ready = self.ready(&Given::New(data), settings, false, self.job.deadline(timeout))?;
        let carry = lock(self.carry.as_ref().expect("a filter of contributions has a carry"));
        self.check_length(carry.len(), out.len())?;
        let dtype = self.spec.dtype;
        let bytes = self.spec.bytes() as usize;
        let lane = ready.lane.contribution(bytes);
        let (mut due, mut sum) = (Vec::new(), Vec::new());
        for chunk in self.chunks_of(0..bytes) {
            let given = match data {
                None => lane.part(chunk.clone()),
                Some(data) if !ready.contribution.adds => data.part(chunk.clone()),
                Some(data) => {
                    sum.resize(chunk.len(), 0);
                    lane.part(chunk.clone()).copy_to(&mut sum);
                    accumulate_into(dtype, &mut ForeignMut::of(&mut sum), data.part(chunk.clone()));
                    Foreign::of(&sum)
                }
            };
            let accumulators = carry.add_to(chunk, given, &mut due);
            out.part(accumulators).copy_from(Foreign::of(&due));
        }
        Ok((ready.contribution.stamp, self.changes.load(Ordering::Relaxed)))
    }

    /// Contributes what a program has made of what was `due`, the pair that [`Tensor::due`] returned: the last contribution of its
    /// iteration, in place of the parts that stand in the lane. `None`, and nothing is changed, if something else is due by now.
    ///
    /// # Panics
    ///
    /// If the tensor has no filter of contributions.
    pub fn push_divided(
        &self,
        parts: Divided<'_>,
        due: (u64, u64),
        settings: Settings,
        timeout: Option<Duration>,
    ) -> Result<Option<u64>, Error> {
        self.check_size(parts.sent.len())?;
        let deadline = self.job.deadline(timeout);
        let given = Given::Divided(&parts);
        let ready = self.ready(&given, settings, false, deadline)?;
        let carried = lock(self.carry.as_ref().expect("a filter of contributions has a carry")).len();
        self.check_length(carried, parts.kept.len())?;
        if (ready.contribution.stamp, self.changes.load(Ordering::Relaxed)) != due {
            return Ok(None);
        }
        self.make(ready, given, settings, deadline).map(Some)
    }

    fn check_length(&self, expected: usize, got: usize) -> Result<(), Error> {
        match expected == got {
            true => Ok(()),
            false => Err(Error::WrongSize { name: self.spec.name.clone(), expected, got }),
        }
    }
}
