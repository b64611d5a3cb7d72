//! The function that compiled programs of JAX call: `python/penstock/jax/compiled.py` gives its address to XLA.
//!
//! XLA reads what it returns: null is success, anything else the address of an error of its own. So what is returned is decided
//! here: an error, until the Python part has said that all is done. Python may raise wherever it runs, before the first line of
//! a function as well (Ctrl-C); that is an error of the program then.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the call, and what XLA is told of it |
//! | `structures.rs` | XLA's structures, which nothing else reads or fills |
//! | `lent.rs` | XLA's memory, for as long as the call |
//! | `guarded.rs` | calls of Python out of XLA, and exceptions as text |

mod guarded;
mod lent;
mod structures;

use self::guarded::{guarded, words};
use self::lent::{AllLent, Lent};
use self::structures::{Array, Checked, Creator, Failure, Frame};
use crate::detach::attached;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Two Python functions, for as long as the process lives: XLA cannot forget what was registered. The one to call, and one that
/// makes text of an exception.
static KEPT: AtomicPtr<ffi::PyObject> = AtomicPtr::new(null_mut());
/// Whether XLA has asked for our version, and was told.
static ASKED: AtomicBool = AtomicBool::new(false);

/// What XLA calls.
extern "C" fn called(frame: *const Frame) -> *mut Failure {
    // A panic's value is leaked: it may panic once more when it is dropped.
    catch_unwind(|| answer(frame)).unwrap_or_else(|panic| {
        std::mem::forget(panic);
        give_up("a panic")
    })
}

fn answer(frame: *const Frame) -> *mut Failure {
    // SAFETY: XLA calls with a frame of its own, which is there until the call returns.
    let frame = match unsafe { Frame::look(frame) } {
        Ok(frame) => frame,
        Err(problem) => give_up(&problem),
    };
    match frame.tell_version() {
        Ok(false) => {}
        Ok(true) => {
            ASKED.store(true, Ordering::Release);
            return null_mut();
        }
        // The question may come without an interface, and so without a way to fail: what is not answered is refused by XLA.
        Err(problem) => return frame.creator().map_or(null_mut(), |creator| failed(&creator, &problem)),
    }
    let creator = match frame.creator() {
        Ok(creator) => creator,
        Err(problem) => give_up(&problem),
    };
    let mut told = Err("the call ended before it was done".to_owned());
    let ran = catch_unwind(AssertUnwindSafe(|| {
        told = attached(|py| run(py, frame)).unwrap_or_else(|| Err("the interpreter has ended".to_owned()));
    }));
    if let Err(panic) = ran {
        // As in `called`.
        std::mem::forget(panic);
        told = Err("a panic in the call".to_owned());
    }
    match told {
        Ok(()) => null_mut(),
        Err(problem) => failed(&creator, &problem),
    }
}

/// There is no way to tell XLA of an error, and its results are not there: going on would be to compute with anything. XLA has
/// refused the function before if it is of another version, so this is not seen.
fn give_up(problem: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "penstock: a compiled program cannot be told of an error: {problem}");
    std::process::abort();
}

fn failed(creator: &Creator, problem: &str) -> *mut Failure {
    let made = creator.make(problem);
    // Null would be success.
    if made.is_null() { give_up(problem) } else { made }
}

/// Makes the call; an error unless the Python part says that it is done.
fn run(py: Python<'_>, frame: &Frame) -> Checked<()> {
    let number = frame.number()?;
    let kept = KEPT.load(Ordering::Acquire);
    // SAFETY: null, or what `keep_xla_call` has leaked: alive for as long as the process.
    let kept = unsafe { Bound::from_borrowed_ptr_or_opt(py, kept) }.ok_or("there is no function to call")?;
    let unseen = |_: PyErr| "what is to be called is not what was kept".to_owned();
    let kept = kept.cast_into::<PyTuple>().map_err(|error| unseen(error.into()))?;
    let (call, shown) = (kept.get_item(0).map_err(unseen)?, kept.get_item(1).map_err(unseen)?);
    let mut lent = AllLent::default();
    let told = (|| {
        let arguments = give(py, frame.arguments()?, true, &mut lent)?;
        let results = give(py, frame.results()?, false, &mut lent)?;
        (number, arguments, results).into_pyobject(py).map_err(Problem::Raised)
    })()
    .and_then(|given| guarded(&call, &given).map_err(Problem::Raised))
    .and_then(|told| match told.is(PyBool::new(py, true)) {
        true => Ok(()),
        false => Err(Problem::Found("the call did not say that it is done".to_owned())),
    });
    // The frames of an exception let go of what they hold when it is shown, before the memory is taken away.
    let told = told.map_err(|problem| match problem {
        Problem::Raised(error) => words(py, &shown, error),
        Problem::Found(problem) => problem,
    });
    // Also what is seldom the call's own doing: a profiler that looks at this thread's frames holds all that is in them.
    let (mut rounds, done) = (0_u64, told.is_ok());
    while lent.take_back() > 0 {
        let pause = call.getattr("pause");
        let pause = pause.and_then(|pause| guarded(&pause, &(rounds, done).into_pyobject(py)?));
        match pause.map(|again| again.is(PyBool::new(py, true))) {
            Ok(true) => rounds += 1,
            Ok(false) => {
                let kept = "an array over XLA's memory was kept beyond the call";
                return Err(told.map_or_else(|told| format!("{told}\n{kept}"), |()| kept.to_owned()));
            }
            Err(error) => return Err(words(py, &shown, error)),
        }
    }
    told
}

enum Problem {
    Raised(PyErr),
    Found(String),
}

impl From<String> for Problem {
    fn from(problem: String) -> Self {
        Self::Found(problem)
    }
}

/// A buffer, as Python gets it.
type Given<'py> = (c_int, Bound<'py, PyTuple>, Bound<'py, Lent>);

/// Of each buffer XLA's number of its type, its shape, and its memory, which is taken back after the call.
fn give<'py, 'call>(
    py: Python<'py>,
    arrays: impl Iterator<Item = Checked<Array<'call>>>,
    readonly: bool,
    lent: &mut AllLent<'py>,
) -> Result<Vec<Given<'py>>, Problem> {
    let each = arrays.map(|array| {
        let array = array?;
        // SAFETY: XLA's memory, of this size by its own word, until the call returns; all that is lent is taken back before.
        // Results may be written, and arguments are not.
        let memory = unsafe { lent.lend(py, array.data, array.nbytes, readonly) }.map_err(Problem::Raised)?;
        Ok((array.dtype, PyTuple::new(py, array.dims).map_err(Problem::Raised)?, memory))
    });
    each.collect()
}

/// Keeps what compiled programs call for as long as the process, unless something is kept already; returns what is.
#[pyfunction]
pub(crate) fn keep_xla_call<'py>(
    py: Python<'py>,
    call: Bound<'py, PyAny>,
    shown: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let ours = PyTuple::new(py, [call, shown])?;
    let first = KEPT.compare_exchange(null_mut(), ours.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
    match first {
        Ok(_) => {
            std::mem::forget(ours.clone());
            ours.get_item(0)
        }
        // SAFETY: alive: the call that kept it holds `ours` from before it stood there until a reference of it is leaked (above).
        Err(kept) => unsafe { Bound::from_borrowed_ptr(py, kept) }.cast_into::<PyTuple>()?.get_item(0),
    }
}

/// The address of the function that XLA calls, as it takes it.
#[pyfunction]
pub(crate) fn xla_target(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let address: extern "C" fn(*const Frame) -> *mut Failure = called;
    // SAFETY: not null; the name lives as long as the process, and so does the function.
    let capsule =
        unsafe { ffi::PyCapsule_New(address as *mut c_void, c"xla._CUSTOM_CALL_TARGET".as_ptr(), None) };
    // SAFETY: a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Whether XLA has asked that function for the version that it is of.
#[pyfunction]
pub(crate) fn xla_has_asked() -> bool {
    ASKED.load(Ordering::Acquire)
}
