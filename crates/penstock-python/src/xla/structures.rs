//! XLA's structures, from jaxlib's xla/ffi/api/c_api.h; of each, the part that is needed.
//!
//! | structure | says |
//! |---|---|
//! | `Frame` | what is asked: the interface's version (an extension), or the call itself |
//! | `Interface` | XLA's version, and the function that makes errors |
//! | `Values` | the buffers of arguments, or of results |
//! | `Attributes` | constants of the call: of ours one, its number |
//!
//! Nothing of them is read before their sizes have been looked at. What stands inside of another has exactly the size that it has
//! here, or all behind it would stand elsewhere. So all that reads them is in this file, and others begin with [`Frame::look`].
//! `tests/jax/test_frames.py` reads this file beside the header.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut};

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

/// XLA's; never looked into.
#[repr(C)]
pub(super) struct Failure([u8; 0]);

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
pub(super) struct Frame {
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
pub(super) type Checked<T> = Result<T, String>;

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

impl Frame {
    /// What XLA calls with.
    ///
    /// # Safety
    ///
    /// `at` is null or leads to a frame of XLA's, of whatever version. The structures that it leads to are what its members say;
    /// all of them stay as they are for `'a`, but for metadata, which are there to be filled.
    pub(super) unsafe fn look<'a>(at: *const Self) -> Checked<&'a Self> {
        // SAFETY: that is what is promised.
        unsafe { look(at) }
    }

    /// Whether it is only asked for which version of the interface the function is; that is told then.
    pub(super) fn tell_version(&self) -> Checked<bool> {
        let Some(metadata) = self.asking()? else { return Ok(false) };
        // SAFETY: XLA's, of the size that is needed (`asking`), to be filled; nothing else refers to it by now.
        let metadata = unsafe { &mut *metadata };
        metadata.version.major = MAJOR;
        metadata.version.minor = MINOR;
        metadata.traits = 0;
        Ok(true)
    }

    /// Where to answer, if it is only asked for which version of the interface the function is.
    fn asking(&self) -> Checked<Option<*mut Metadata>> {
        let mut at = self.start.extension;
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

    /// What makes XLA's errors.
    pub(super) fn creator(&self) -> Checked<Creator> {
        // SAFETY: XLA's, there for as long as the process.
        let interface = unsafe { look(self.interface) }?;
        let version = &interface.version;
        expect_size::<Version>(version.start.struct_size, true)?;
        if version.major != MAJOR || version.minor < MINOR {
            let (major, minor) = (version.major, version.minor);
            return Err(format!(
                "XLA's interface is {major}.{minor}, expected {MAJOR}.{MINOR} or a later minor one"
            ));
        }
        interface.create.map(Creator).ok_or_else(|| "XLA's interface cannot make errors".to_owned())
    }

    /// The number of the call, if it is to be made.
    pub(super) fn number(&self) -> Checked<u64> {
        if self.stage != EXECUTE {
            return Err(format!("XLA called at stage {}, expected {EXECUTE}", self.stage));
        }
        self.attributes.number()
    }

    pub(super) fn arguments(&self) -> Checked<impl Iterator<Item = Checked<Array<'_>>>> {
        self.arguments.arrays()
    }

    pub(super) fn results(&self) -> Checked<impl Iterator<Item = Checked<Array<'_>>>> {
        self.results.arrays()
    }
}

/// XLA's function that makes errors.
pub(super) struct Creator(Create);

impl Creator {
    /// An error of XLA's; null when XLA makes none.
    pub(super) fn make(&self, problem: &str) -> *mut Failure {
        let message = CString::new(problem.replace('\0', "\\0")).expect("it has no zeros");
        let start = Start { struct_size: Failing::LEAST, extension: null_mut() };
        let mut failing = Failing { start, message: message.as_ptr(), code: INTERNAL };
        // SAFETY: XLA's function, which is given what it takes, and copies the message.
        unsafe { (self.0)(&raw mut failing) }
    }
}

impl Attributes {
    /// The call's only attribute.
    fn number(&self) -> Checked<u64> {
        expect_size::<Self>(self.start.struct_size, true)?;
        // SAFETY: XLA's array of this length, there until the call returns.
        let types = unsafe { list(self.types, self.size) }?;
        // SAFETY: as above.
        let values = unsafe { list(self.values, self.size) }?;
        let ([SCALAR], [value]) = (types, values) else {
            return Err(format!("XLA gave attributes of kinds {types:?}, expected one scalar"));
        };
        // SAFETY: a scalar, as its kind says; there until the call returns.
        let scalar = unsafe { value.as_ref() }.ok_or("XLA gave no attribute")?;
        if scalar.dtype != U64 {
            return Err(format!("XLA gave an attribute of type {}, expected {U64}", scalar.dtype));
        }
        // SAFETY: a number of 64 bits, as its type says.
        let number = unsafe { scalar.value.as_ref() };
        number.copied().ok_or_else(|| "XLA gave an attribute without value".to_owned())
    }
}

/// A buffer of the call, for as long as that.
pub(super) struct Array<'call> {
    pub(super) dtype: c_int,
    pub(super) dims: &'call [i64],
    /// Of an empty one the address of nothing.
    pub(super) data: NonNull<c_char>,
    pub(super) nbytes: isize,
}

impl Values {
    fn arrays(&self) -> Checked<impl Iterator<Item = Checked<Array<'_>>>> {
        expect_size::<Self>(self.start.struct_size, true)?;
        // SAFETY: XLA's array of this length, there until the call returns.
        let types = unsafe { list(self.types, self.size) }?;
        // SAFETY: as above.
        let values = unsafe { list(self.values, self.size) }?;
        Ok(types.iter().zip(values).map(|(&kind, &buffer)| {
            if kind != BUFFER {
                return Err(format!("XLA gave a value of kind {kind}, expected a buffer"));
            }
            // SAFETY: a buffer, as its kind says; there until the call returns.
            let buffer = unsafe { look(buffer) }?;
            // SAFETY: as many as it has dimensions.
            let dims = unsafe { list(buffer.dims, buffer.rank) }?;
            let nbytes = nbytes(buffer.dtype, dims)?;
            let data = if nbytes == 0 { Some(NonNull::dangling()) } else { NonNull::new(buffer.data) };
            let data = data.ok_or_else(|| format!("XLA gave a buffer of {nbytes} bytes at no address"))?;
            Ok(Array { dtype: buffer.dtype, dims, data, nbytes })
        }))
    }
}

/// Bytes of a buffer.
fn nbytes(dtype: c_int, dims: &[i64]) -> Checked<isize> {
    let width = width(dtype).ok_or_else(|| format!("XLA gave a buffer of the unknown type {dtype}"))?;
    let bytes =
        dims.iter().try_fold(width, |bytes, &length| bytes.checked_mul(usize::try_from(length).ok()?));
    let bytes = bytes.and_then(|bytes| isize::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("XLA gave a buffer of shape {dims:?}"))
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
