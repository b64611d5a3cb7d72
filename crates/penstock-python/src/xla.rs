//! The function that compiled programs of JAX call: `python/penstock/jax/compiled.py` gives its address to XLA.
//!
//! XLA reads what it returns: null is success, anything else the address of an error of its own. So what is returned is decided
//! here: an error, until the Python part has said that all is done. Python may raise wherever it runs, before the first line of
//! a function as well (Ctrl-C); that is an error of the program then.
//!
//! The structures are XLA's, from jaxlib's xla/ffi/api/c_api.h; of each, the part that is needed.
//!
//! | structure | says |
//! |---|---|
//! | `Frame` | what is asked: the interface's version (an extension), or the call itself |
//! | `Interface` | XLA's version, and the function that makes errors |
//! | `Values` | the buffers of arguments, or of results |
//! | `Attributes` | constants of the call: of ours one, its number |
//!
//! Nothing of them is read before their sizes have been looked at. What stands inside of another has exactly the size that it has
//! here, or all behind it would stand elsewhere.

use crate::detach::attached;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString, PyTuple};
use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Write;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Version of the interface that this is written for; a later minor one only adds to it.
const MAJOR: c_int = 0;
const MINOR: c_int = 3;

/// `XLA_FFI_Extension_Metadata`.
const METADATA: c_int = 1;
/// `XLA_FFI_ExecutionStage_EXECUTE`.
const EXECUTE: c_int = 3;
/// `XLA_FFI_ArgType_BUFFER`, and `XLA_FFI_RetType_BUFFER`.
const BUFFER: c_int = 1;
/// `XLA_FFI_AttrType_SCALAR`.
const SCALAR: c_int = 3;
/// `XLA_FFI_DataType_U64`.
const U64: c_int = 9;
/// `XLA_FFI_Error_Code_INTERNAL`.
const INTERNAL: c_int = 13;
/// More extensions than a frame has, more buffers and dimensions than a call: beyond it something is not what it is read as.
const MOST: i64 = 1 << 20;

/// Two Python functions, for as long as the process lives: XLA cannot forget what was registered. The one to call, and one that
/// makes text of an exception.
static KEPT: AtomicPtr<ffi::PyObject> = AtomicPtr::new(null_mut());
/// Whether XLA has asked for our version, and was told.
static ASKED: AtomicBool = AtomicBool::new(false);

/// XLA's; never looked into.
#[repr(C)]
struct Failure([u8; 0]);

#[repr(C)]
struct Start {
    struct_size: usize,
    extension: *const Extension,
}

#[repr(C)]
struct Extension {
    struct_size: usize,
    kind: c_int,
    next: *const Self,
}

#[repr(C)]
struct Asking {
    base: Extension,
    metadata: *mut Metadata,
}

#[repr(C)]
struct Version {
    start: Start,
    major: c_int,
    minor: c_int,
}

#[repr(C)]
struct Metadata {
    struct_size: usize,
    version: Version,
    traits: u32,
}

#[repr(C)]
struct Failing {
    start: Start,
    message: *const c_char,
    code: c_int,
}

type Create = unsafe extern "C" fn(*mut Failing) -> *mut Failure;

#[repr(C)]
struct Interface {
    start: Start,
    version: Version,
    internal: *const c_void,
    create: Option<Create>,
}

#[repr(C)]
struct Buffer {
    start: Start,
    dtype: c_int,
    data: *mut c_char,
    rank: i64,
    dims: *const i64,
}

#[repr(C)]
struct Values {
    start: Start,
    size: i64,
    types: *const c_int,
    values: *const *const Buffer,
}

#[repr(C)]
struct Scalar {
    dtype: c_int,
    value: *const u64,
}

#[repr(C)]
struct Attributes {
    start: Start,
    size: i64,
    types: *const c_int,
    names: *const c_void,
    values: *const *const Scalar,
}

#[repr(C)]
struct Frame {
    start: Start,
    interface: *const Interface,
    context: *const c_void,
    stage: c_int,
    arguments: Values,
    results: Values,
    attributes: Attributes,
}

/// A structure that begins with its size.
trait Measured {
    const NAME: &'static str;
    /// Bytes up to the end of the last member that is read.
    const LEAST: usize;
}

macro_rules! measured {
    ($($kind:ident as $name:literal to $last:ident: $of:ty;)*) => {
        $(impl Measured for $kind {
            const NAME: &'static str = $name;
            const LEAST: usize = offset_of!($kind, $last) + size_of::<$of>();
        })*
    };
}

measured! {
    Extension as "extension" to next: *const Extension;
    Asking as "question for the version" to metadata: *mut Metadata;
    Version as "version" to minor: c_int;
    Metadata as "metadata" to traits: u32;
    Failing as "error" to code: c_int;
    Interface as "interface" to create: Option<Create>;
    Buffer as "buffer" to dims: *const i64;
    Values as "list of buffers" to values: *const *const Buffer;
    Attributes as "list of attributes" to values: *const *const Scalar;
    Frame as "call frame" to attributes: Attributes;
}

/// What is wrong, for the error's text.
type Checked<T> = Result<T, String>;

/// A structure, when its size has been looked at.
///
/// # Safety
///
/// `at` is null or leads to a structure of this kind, of whatever version, which begins with its size; it stays as it is for `'a`.
unsafe fn look<'a, T: Measured>(at: *const T) -> Checked<&'a T> {
    if at.is_null() {
        return Err(format!("XLA gave no {}", T::NAME));
    }
    // SAFETY: its size is what it begins with (above), and it is not null.
    expect_size::<T>(unsafe { *at.cast::<usize>() }, false)?;
    // SAFETY: it is as long as what is read of it (checked), and XLA has filled it.
    Ok(unsafe { &*at })
}

/// `inside` another, where all behind it would stand elsewhere if it were longer.
fn expect_size<T: Measured>(found: usize, inside: bool) -> Checked<()> {
    if found < T::LEAST || inside && found != T::LEAST {
        return Err(format!("XLA's {} has {found} bytes, expected {}", T::NAME, T::LEAST));
    }
    Ok(())
}

/// XLA's arrays.
///
/// # Safety
///
/// `at` is null or leads to `size` values, which stay as they are for `'a`.
unsafe fn list<'a, T>(at: *const T, size: i64) -> Checked<&'a [T]> {
    if size == 0 {
        return Ok(&[]);
    }
    if at.is_null() || !(1..=MOST).contains(&size) {
        return Err(format!(
            "XLA gave a list of {size} values{}",
            if at.is_null() { " at no address" } else { "" }
        ));
    }
    // SAFETY: as many are there (above), and it is not null.
    Ok(unsafe { std::slice::from_raw_parts(at, size as usize) })
}

/// Bytes of an element: of the types that NumPy has too, and of a token, which has none.
/// Of `XLA_FFI_DataType`; the same numbers as in `registry.py`.
fn width(dtype: c_int) -> Option<usize> {
    match dtype {
        17 => Some(0),
        1 | 2 | 6 => Some(1),
        3 | 7 | 10 | 16 => Some(2),
        4 | 8 | 11 => Some(4),
        5 | 9 | 12 | 15 => Some(8),
        18 => Some(16),
        _ => None,
    }
}

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
    let frame = match unsafe { look(frame) } {
        Ok(frame) => frame,
        Err(problem) => give_up(&problem),
    };
    match asking(frame).map(|metadata| metadata.map(tell_version)) {
        Ok(None) => {}
        Ok(Some(())) => return null_mut(),
        // The question may come without an interface, and so without a way to fail: what is not answered is refused by XLA.
        Err(problem) => return creator(frame).map_or(null_mut(), |create| failed(create, &problem)),
    }
    let create = match creator(frame) {
        Ok(create) => create,
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
        Err(problem) => failed(create, &problem),
    }
}

/// There is no way to tell XLA of an error, and its results are not there: going on would be to compute with anything. XLA has
/// refused the function before if it is of another version, so this is not seen.
fn give_up(problem: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "penstock: a compiled program cannot be told of an error: {problem}");
    std::process::abort();
}

/// Where to answer, if it is only asked for which version of the interface the function is.
fn asking(frame: &Frame) -> Checked<Option<*mut Metadata>> {
    let mut at = frame.start.extension;
    for _ in 0..MOST {
        if at.is_null() {
            return Ok(None);
        }
        // SAFETY: extensions are a list of XLA's, there until the call returns.
        let extension = unsafe { look(at) }?;
        if extension.kind == METADATA {
            // SAFETY: that is what an extension of this kind is.
            let asking = unsafe { look(at.cast::<Asking>()) }?;
            // SAFETY: XLA's, to be filled until the call returns.
            let metadata = unsafe { look(asking.metadata.cast_const()) }?;
            expect_size::<Version>(metadata.version.start.struct_size, true)?;
            return Ok(Some(asking.metadata));
        }
        at = extension.next;
    }
    Err("XLA gave extensions without end".to_owned())
}

fn tell_version(metadata: *mut Metadata) {
    // SAFETY: XLA's, of the size that is needed (`asking`), to be filled; nothing else refers to it by now.
    let metadata = unsafe { &mut *metadata };
    metadata.version.major = MAJOR;
    metadata.version.minor = MINOR;
    metadata.traits = 0;
    ASKED.store(true, Ordering::Release);
}

/// XLA's function that makes errors.
fn creator(frame: &Frame) -> Checked<Create> {
    // SAFETY: XLA's, there for as long as the process.
    let interface = unsafe { look(frame.interface) }?;
    let version = &interface.version;
    expect_size::<Version>(version.start.struct_size, true)?;
    if version.major != MAJOR || version.minor < MINOR {
        let (major, minor) = (version.major, version.minor);
        return Err(format!(
            "XLA's interface is {major}.{minor}, expected {MAJOR}.{MINOR} or a later minor one"
        ));
    }
    interface.create.ok_or_else(|| "XLA's interface cannot make errors".to_owned())
}

fn failed(create: Create, problem: &str) -> *mut Failure {
    let message = CString::new(problem.replace('\0', "\\0")).expect("it has no zeros");
    let start = Start { struct_size: Failing::LEAST, extension: null_mut() };
    let mut failing = Failing { start, message: message.as_ptr(), code: INTERNAL };
    // SAFETY: XLA's function, which is given what it takes, and copies the message.
    let made = unsafe { create(&raw mut failing) };
    // Null would be success.
    if made.is_null() { give_up(problem) } else { made }
}

/// Makes the call; an error unless the Python part says that it is done.
fn run(py: Python<'_>, frame: &Frame) -> Checked<()> {
    if frame.stage != EXECUTE {
        return Err(format!("XLA called at stage {}, expected {EXECUTE}", frame.stage));
    }
    let number = number(&frame.attributes)?;
    let kept = KEPT.load(Ordering::Acquire);
    // SAFETY: null, or what `keep_xla_call` has leaked: alive for as long as the process.
    let kept = unsafe { Bound::from_borrowed_ptr_or_opt(py, kept) }.ok_or("there is no function to call")?;
    let unseen = |_: PyErr| "what is to be called is not what was kept".to_owned();
    let kept = kept.cast_into::<PyTuple>().map_err(|error| unseen(error.into()))?;
    let (call, shown) = (kept.get_item(0).map_err(unseen)?, kept.get_item(1).map_err(unseen)?);
    let mut lent = AllLent(Vec::new());
    let told = (|| {
        let arguments = values(py, &frame.arguments, true, &mut lent.0)?;
        let results = values(py, &frame.results, false, &mut lent.0)?;
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

/// Memory of XLA's, lent to Python for a call.
#[pyclass(frozen, module = "penstock._core")]
struct Lent {
    /// Null when it is taken back.
    data: AtomicPtr<c_char>,
    nbytes: isize,
    readonly: bool,
    /// Views that Python has of it, and those that it asks for just now.
    views: AtomicUsize,
}

impl Lent {
    /// No more of it; whether nothing is left that could reach it.
    fn take_back(&self) -> bool {
        // In one order with the two of `lend`: who is not counted yet at the second finds null.
        self.data.store(null_mut(), Ordering::SeqCst);
        self.views.load(Ordering::SeqCst) == 0
    }

    /// Its address, counted as a view; null when it was taken back, which counts nothing.
    fn lend(&self) -> *mut c_char {
        // Counted before the address is read: without the GIL `take_back` may come in between.
        self.views.fetch_add(1, Ordering::SeqCst);
        let data = self.data.load(Ordering::SeqCst);
        if data.is_null() {
            self.give_back();
        }
        data
    }

    /// A view has gone, or was not made.
    fn give_back(&self) {
        self.views.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What is lent for a call. All of it is taken back, however the call ends.
struct AllLent<'py>(Vec<Bound<'py, Lent>>);

impl AllLent<'_> {
    /// How many of them can still be reached.
    fn take_back(&self) -> usize {
        self.0.iter().filter(|one| !one.get().take_back()).count()
    }
}

impl Drop for AllLent<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

#[pymethods]
impl Lent {
    // SAFETY: called by the interpreter with a view to fill, as the buffer protocol says.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let lent = slf.get();
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let data = lent.lend();
        if data.is_null() {
            return Err(PyBufferError::new_err("the call that this memory was lent for has ended"));
        }
        let readonly = c_int::from(lent.readonly);
        // SAFETY: XLA's memory, of this size by its own word, until the call returns; what is left of its views then is an error
        // of the program. Results may be written, and arguments are not.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data.cast(), lent.nbytes, readonly, flags) };
        if filled != 0 {
            lent.give_back();
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    // SAFETY: called by the interpreter, once for each view that was filled; the view holds nothing to be freed.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.give_back();
    }
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

/// The call's only attribute.
fn number(attributes: &Attributes) -> Checked<u64> {
    expect_size::<Attributes>(attributes.start.struct_size, true)?;
    // SAFETY: XLA's array of this length, there until the call returns.
    let types = unsafe { list(attributes.types, attributes.size) }?;
    // SAFETY: as above.
    let values = unsafe { list(attributes.values, attributes.size) }?;
    let ([SCALAR], [value]) = (types, values) else {
        return Err(format!("XLA gave attributes of kinds {types:?}, expected one scalar"));
    };
    // SAFETY: a scalar, as its kind says; there until the call returns.
    let scalar = unsafe { value.as_ref() }.ok_or("XLA gave no attribute")?;
    if scalar.dtype != U64 {
        return Err(format!("XLA gave an attribute of type {}, expected {U64}", scalar.dtype));
    }
    // SAFETY: a number of 64 bits, as its type says.
    unsafe { scalar.value.as_ref() }.copied().ok_or_else(|| "XLA gave an attribute without value".to_owned())
}

/// A buffer, as Python gets it.
type Given<'py> = (c_int, Bound<'py, PyTuple>, Bound<'py, Lent>);

/// Of each buffer XLA's number of its type, its shape, and its memory, which is taken back after the call.
fn values<'py>(
    py: Python<'py>,
    values: &Values,
    readonly: bool,
    all: &mut Vec<Bound<'py, Lent>>,
) -> Result<Vec<Given<'py>>, Problem> {
    expect_size::<Values>(values.start.struct_size, true)?;
    // SAFETY: XLA's array of this length, there until the call returns.
    let types = unsafe { list(values.types, values.size) }?;
    // SAFETY: as above.
    let values = unsafe { list(values.values, values.size) }?;
    let each = types.iter().zip(values).map(|(&kind, &buffer)| {
        if kind != BUFFER {
            return Err(Problem::Found(format!("XLA gave a value of kind {kind}, expected a buffer")));
        }
        // SAFETY: a buffer, as its kind says; there until the call returns.
        let buffer = unsafe { look(buffer) }?;
        // SAFETY: as many as it has dimensions.
        let dims = unsafe { list(buffer.dims, buffer.rank) }?;
        let bytes = nbytes(buffer.dtype, dims)?;
        let empty = NonNull::<c_char>::dangling().as_ptr();
        let data = if bytes == 0 { empty } else { buffer.data };
        if data.is_null() {
            return Err(Problem::Found(format!("XLA gave a buffer of {bytes} bytes at no address")));
        }
        let lent = Lent { data: AtomicPtr::new(data), nbytes: bytes, readonly, views: AtomicUsize::new(0) };
        let lent = Bound::new(py, lent).map_err(Problem::Raised)?;
        all.push(lent.clone());
        Ok((buffer.dtype, PyTuple::new(py, dims).map_err(Problem::Raised)?, lent))
    });
    each.collect()
}

/// Bytes of a buffer.
fn nbytes(dtype: c_int, dims: &[i64]) -> Checked<isize> {
    let width = width(dtype).ok_or_else(|| format!("XLA gave a buffer of the unknown type {dtype}"))?;
    let bytes =
        dims.iter().try_fold(width, |bytes, &length| bytes.checked_mul(usize::try_from(length).ok()?));
    let bytes = bytes.and_then(|bytes| isize::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("XLA gave a buffer of shape {dims:?}"))
}

/// An exception as text that is UTF-8, whatever it says: Python's text need not be.
fn words(py: Python<'_>, shown: &Bound<'_, PyAny>, error: PyErr) -> String {
    let kind = error.get_type(py);
    let text = PyTuple::new(py, [error.into_value(py)]).and_then(|error| guarded(shown, &error));
    match text.and_then(|text| Ok(text.cast_into::<PyString>()?)) {
        Ok(text) => text.to_string_lossy().into_owned(),
        // It raises itself, or Ctrl-C came meanwhile.
        Err(other) => format!("{kind}, and {} when it was to be shown", other.get_type(py)),
    }
}

// As PyO3 declares it, but for the unwinding: see `Stays`.
unsafe extern "C-unwind" {
    fn PyObject_CallObject(callable: *mut ffi::PyObject, arguments: *mut ffi::PyObject)
    -> *mut ffi::PyObject;
}

/// A thread that comes back to an interpreter which ends is unwound by it, up to Python 3.13, through all that it is in; what
/// called it would be aborted by that, the whole process with it. Such a thread stays here, as it does in later versions.
struct Stays;

impl Drop for Stays {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// Calls Python.
fn guarded<'py>(call: &Bound<'py, PyAny>, arguments: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    let stays = Stays;
    // SAFETY: the interpreter is attached, and both are alive.
    let found = unsafe { PyObject_CallObject(call.as_ptr(), arguments.as_ptr()) };
    std::mem::forget(stays);
    // SAFETY: a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(call.py(), found) }
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
