//! Some rows or elements of a tensor, and contributions of low rank.

use crate::boundary::{array, array_mut, guard_job, here};
use crate::call::{Call, penstock_call};
use crate::status::{Failure, penstock_status};
use crate::tensor::{Given, Units, Wanted, penstock_tensor};
use penstock_proto::spec::TensorSpec;
use std::ffi::c_void;

/// Contributes to some rows: places along the tensor's first dimension. It is what a push of the whole array would be, with zeros in
/// all other rows; where zeros change nothing by the tensor's rule, only chunks that are touched move (docs/sparse.md).
///
/// @param rows    Rows from 0 on, in any order; what is named twice is summed.
/// @param count   How many. 0: a push of zeros.
/// @param values  Their contributions, one row after the other, of the tensor's dtype. All may be changed at once.
/// @param bytes   The values' size: `count` rows'.
/// @param call    NULL, or see penstock_call: `timeout`, `more`, `versions` (one).
///
/// Afterwards the lane holds no contribution: ask for it once more before it is filled and pushed with NULL. Errors:
/// PENSTOCK_UNKNOWN_ELEMENT (the tensor has no such row), PENSTOCK_BAD_SHAPE, and as penstock_push().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_push_rows(
    tensor: *const penstock_tensor,
    rows: *const u64,
    count: usize,
    values: *const c_void,
    bytes: usize,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let rows = unsafe { array(rows, count, "rows") }?;
        let units = Units { indices: rows, length: row(tensor.core().spec())? };
        // SAFETY: likewise.
        unsafe { push_some(tensor, units, values, bytes, call) }
    })
}

/// The same of single elements.
///
/// @param indices  Elements from 0 on, counted as they stand in memory, over all dimensions; in any order, and what is named twice is
///                 summed.
/// @param count, values, bytes, call  As for penstock_push_rows(), a value for each.
///
/// Errors: as penstock_push_rows().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_push_elements(
    tensor: *const penstock_tensor,
    indices: *const u64,
    count: usize,
    values: *const c_void,
    bytes: usize,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let indices = unsafe { array(indices, count, "indices") }?;
        // SAFETY: likewise.
        unsafe { push_some(tensor, Units { indices, length: 1 }, values, bytes, call) }
    })
}

/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn push_some(
    tensor: &penstock_tensor,
    units: Units<'_>,
    values: *const c_void,
    bytes: usize,
    call: *const penstock_call,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let values = unsafe { array(values.cast::<u8>(), bytes, "values") }?;
    // SAFETY: likewise.
    let mut call = unsafe { Call::read(call, 1) }?;
    tensor.push(Given::Some(units, values), &mut call)
}

/// Contributes the product u v to a tensor of two dimensions, (m, n).
///
/// It is what a push of the product would be; but to servers on other hosts it is u and v that are sent, where the tensor was
/// declared with a `low_rank` of `rank` or more and that is shorter (docs/factors.md). Each element is summed in the order of the
/// rank, in double for double and in float for all else, and rounded once.
///
/// @param u        Of shape (m, rank), of the tensor's dtype, rows one after the other. Both may be changed at once.
/// @param u_bytes  Its size.
/// @param v        Of shape (rank, n), likewise.
/// @param v_bytes  Its size.
/// @param rank     Columns of u, and rows of v. 0: a push of zeros.
/// @param call     NULL, or see penstock_call: `timeout`, `more`, `versions` (one).
///
/// Afterwards the lane holds no contribution, as after penstock_push_rows(). Errors: PENSTOCK_BAD_SHAPE (the tensor has not two
/// dimensions, or these are not its factors), and as penstock_push().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_push_factors(
    tensor: *const penstock_tensor,
    u: *const c_void,
    u_bytes: usize,
    v: *const c_void,
    v_bytes: usize,
    rank: usize,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let u = unsafe { array(u.cast::<u8>(), u_bytes, "u") }?;
        // SAFETY: likewise.
        let v = unsafe { array(v.cast::<u8>(), v_bytes, "v") }?;
        // SAFETY: likewise.
        let mut call = unsafe { Call::read(call, 1) }?;
        tensor.push(Given::Factors([u, v], rank), &mut call)
    })
}

/// Copies some rows of the value, as fresh as penstock_pull_into() would copy all of it. Only chunks that they touch are looked at;
/// of servers on other hosts, fetched and waited for.
///
/// @param rows   Rows from 0 on, in any order, also some twice.
/// @param count  How many. 0: nothing is waited for.
/// @param out    Where they are copied to, one after the other.
/// @param bytes  Its size: `count` rows'.
/// @param slack  As for penstock_pull_into().
/// @param call   NULL, or see penstock_call: `timeout`, `versions` (one), `exact`.
///
/// Errors: PENSTOCK_UNKNOWN_ELEMENT (the tensor has no such row; `out` is as it was), PENSTOCK_BAD_SHAPE, and as
/// penstock_pull_into_with().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_pull_rows(
    tensor: *const penstock_tensor,
    rows: *const u64,
    count: usize,
    out: *mut c_void,
    bytes: usize,
    slack: i64,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let rows = unsafe { array(rows, count, "rows") }?;
        let units = Units { indices: rows, length: row(tensor.core().spec())? };
        // SAFETY: likewise.
        unsafe { pull_some(tensor, units, out, bytes, slack, call) }
    })
}

/// The same of single elements.
///
/// @param indices  Elements from 0 on, counted as they stand in memory, over all dimensions; in any order, also some twice.
/// @param count, out, bytes, slack, call  As for penstock_pull_rows().
///
/// Errors: as penstock_pull_rows().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_pull_elements(
    tensor: *const penstock_tensor,
    indices: *const u64,
    count: usize,
    out: *mut c_void,
    bytes: usize,
    slack: i64,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let indices = unsafe { array(indices, count, "indices") }?;
        // SAFETY: likewise.
        unsafe { pull_some(tensor, Units { indices, length: 1 }, out, bytes, slack, call) }
    })
}

/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn pull_some(
    tensor: &penstock_tensor,
    units: Units<'_>,
    out: *mut c_void,
    bytes: usize,
    slack: i64,
    call: *const penstock_call,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let out = unsafe { array_mut(out.cast::<u8>(), bytes, "out") }?;
    // SAFETY: likewise.
    let mut call = unsafe { Call::read(call, 1) }?;
    tensor.pull(Wanted::Some(units), out, slack, &mut call)
}

/// Elements of a row.
pub(crate) fn row(spec: &TensorSpec) -> Result<usize, Failure> {
    match &spec.shape[..] {
        [_, others @ ..] => Ok(others.iter().product::<u64>() as usize),
        [] => {
            let message = format!("`{}` is a scalar, and has no rows", spec.name);
            Err(Failure::new(penstock_status::PENSTOCK_BAD_SHAPE, message, "push and pull all of it"))
        }
    }
}
