//! Updates that a shard sends in place of values: their sums, as they come or made of factors as their home has made them.

use super::{Mirrored, Value};
use penstock_kernels::codec::{Base, Codec, Undecodable};
use penstock_kernels::{ALIGNMENT, Factors, Foreign, Plan, Settings, SumRoom, product, sum_lanes};
use penstock_proto::factors::down::{Products, Shown};
use penstock_proto::factors::{LowRank, ROWS};
use penstock_proto::update::{self, Updates};

/// An update, as it has come.
pub struct Update<'a> {
    /// The numbers of its step, which the rule takes.
    pub settings: Settings,
    /// Optimizer steps before it.
    pub step: u64,
    /// What the rule is given.
    pub sum: Sum<'a>,
}

/// The sum of an update, as it has come.
pub enum Sum<'a> {
    /// Its bytes, and what decodes them.
    Encoded(&'a [u8], &'a dyn Codec),
    /// What it is made of.
    Of(Products<'a>),
}

impl Update<'_> {
    /// Decodes the sum of a chunk of so many bytes, or makes it as its home has, for [`fold`](Self::fold), before anything is changed.
    pub fn decode<'r>(
        &self,
        plan: &Plan,
        room: &'r mut SumRoom,
        bytes: usize,
    ) -> Result<&'r mut [u8], Undecodable> {
        match &self.sum {
            Sum::Encoded(encoded, codec) => {
                let sum = room.of(bytes);
                codec.decode(encoded, Base::Zeros, sum)?;
                Ok(sum)
            }
            Sum::Of(products) => Ok(self.sum_up(products, plan, room, bytes)),
        }
    }

    /// Multiplies what would stand in each worker's lane, and sums it.
    fn sum_up<'r>(
        &self,
        products: &Products<'_>,
        plan: &Plan,
        room: &'r mut SumRoom,
        bytes: usize,
    ) -> &'r mut [u8] {
        let Products { scale, low_rank: LowRank { dtype, columns, .. }, column, all } = products;
        // Lanes begin on cache lines.
        let each = bytes.next_multiple_of(ALIGNMENT);
        let (total, lanes) = room.of(each * (1 + all.len())).split_at_mut(each);
        for (lane, &(rank, u, v)) in lanes.chunks_exact_mut(each).zip(all) {
            // Numbers of such a dtype are its accumulators: only of those sums are sent.
            let factors = Factors { u, v, columns: *columns as usize, rank: rank as usize };
            product(*dtype, factors, *column, &mut lane[..bytes]);
        }
        let lanes: Vec<Foreign<'_>> =
            lanes.chunks_exact(each).map(|lane| Foreign::of(&lane[..bytes])).collect();
        let total = &mut total[..bytes];
        sum_lanes(plan, &self.settings, self.step, *scale, &lanes, total);
        total
    }

    /// Takes the step from value and state as they stand.
    pub fn fold(&self, plan: &Plan, sum: &[u8], value: &mut [u8], state: &mut [u8]) {
        penstock_kernels::apply(plan, &self.settings, self.step, Foreign::of(sum), value, state);
    }
}

/// What an update of a chunk is, whose header was judged, and whose payload is verified. `shown`: right factors that it may name.
pub(super) fn updated<'a>(
    mirrored: &impl Mirrored,
    chunk: u32,
    value: &Value<'a>,
    steps: u64,
    shown: Option<&'a Shown>,
) -> Result<Update<'a>, String> {
    let Updates { plan, .. } = mirrored.updates().ok_or("an update, where values come")?;
    let (step, settings, sum) = update::split(value.payload).map_err(|short| short.to_string())?;
    settings.check(plan.rule).map_err(|unfit| unfit.to_string())?;
    if step >= steps {
        return Err(format!("an update behind {step} steps, expected fewer than {steps}"));
    }
    if value.header.encoding != ROWS {
        return Ok(Update { settings, step, sum: Sum::Encoded(sum, value.codec) });
    }
    let low_rank = mirrored.low_rank().ok_or("factors of a tensor whose contributions do not travel so")?;
    let shown = shown.ok_or("an update of factors, of which none has come")?;
    let products = shown.products(&low_rank, mirrored.range_of(chunk), sum);
    Ok(Update { settings, step, sum: Sum::Of(products.map_err(|refused| refused.to_string())?) })
}
