//! Rows that are read in place.

use super::{clock, penstock_table, slack};
use crate::boundary::{guard, guard_job, here, result};
use crate::call::{Call, penstock_call};
use crate::status::{Failure, penstock_status};
use penstock::worker::View;
use std::ffi::c_void;
use std::ptr::null;

/// A row that is read in place.
pub struct penstock_view {
    view: View,
    name: String,
    row: u64,
}

/// Gives access to a row in place, as fresh as penstock_get_row() would copy it. Nothing is copied. The table must have no fold.
///
/// Its producer does not wait for readers: what is read counts only if penstock_view_end() returns PENSTOCK_OK.
///
/// @param view   Where the view is stored; end it with penstock_view_end(), before penstock_finish().
/// @param bytes  Where the row's address is stored: penstock_row_bytes() bytes, not to be written to, valid until the view ends.
///
/// Errors: as penstock_get(); PENSTOCK_BAD_OPTION if the table has a fold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_view_begin(
    table: *const penstock_table,
    row: u64,
    clock: u64,
    slack: i64,
    view: *mut *mut penstock_view,
    bytes: *mut *const c_void,
) -> penstock_status {
    // SAFETY: as penstock.h says of every pointer.
    unsafe { penstock_view_begin_with(table, row, clock, slack, view, bytes, null()) }
}

/// penstock_view_begin() with its own timeout, and the row's version.
///
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_view_begin_with(
    table: *const penstock_table,
    row: u64,
    clock: u64,
    slack: i64,
    view: *mut *mut penstock_view,
    bytes: *mut *const c_void,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let table = unsafe { here(table, "table", caller) }?;
        // SAFETY: likewise.
        let mut call = unsafe { Call::read(call, 1) }?;
        // SAFETY: likewise.
        let view = unsafe { result(view, "view") }?;
        // SAFETY: likewise.
        let bytes = unsafe { result(bytes, "bytes") }?;
        let (clock, slack) = (self::clock(clock), self::slack(slack)?);
        let core = table.core()?.view(row, clock, slack, Some(call.timeout.unwrap_or(table.timeout)))?;
        *bytes = core.address().as_ptr().cast_const().cast();
        call.leave(core.version());
        let name = table.name.clone();
        *view = Box::into_raw(Box::new(penstock_view { view: core, name, row }));
        Ok(())
    })
}

/// Ends a view, and reports whether what was read in it counts.
///
/// @param view  NULL: nothing is done.
///
/// Errors: PENSTOCK_TORN_VIEW (the row was overwritten in the meantime: discard what was read, and read again). The view has
/// ended in either case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_view_end(view: *mut penstock_view) -> penstock_status {
    guard(|| {
        if view.is_null() {
            return Ok(());
        }
        // SAFETY: it came from `Box::into_raw` in `penstock_view_begin`, and nothing else has it, as penstock.h says.
        let penstock_view { view, name, row } = *unsafe { Box::from_raw(view) };
        if view.is_valid() {
            return Ok(());
        }
        let message = format!("row {row} of `{name}` was overwritten while it was read in place");
        let hint = "discard what was read and read again, or copy it with penstock_get_row()";
        Err(Failure::new(penstock_status::PENSTOCK_TORN_VIEW, message, hint))
    })
}
