//! The control plane's socket: Unix, `SOCK_SEQPACKET`, one datagram a message, descriptors beside it.
//!
//! The kernel says who is at the other end (`SO_PEERCRED`), keeps messages apart, and closes descriptors that were not asked for:
//! a server gives no room for any, so a worker cannot fill its table.

use penstock_proto::message::{MAX_MESSAGE_BYTES, MAX_SHARDS};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::{self, Errno};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Most descriptors of one message: a page, the flags, and a wake-up for each shard.
pub const MAX_DESCRIPTORS: usize = MAX_SHARDS as usize + 2;

/// Longest path of a socket.
const LONGEST_PATH: usize = 107;

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
}

/// What came beside a message.
#[derive(Debug, Default)]
pub struct Received {
    /// The descriptors, in the sender's order.
    pub descriptors: Vec<OwnedFd>,
    /// Whether there were more: this process has as many as it may have, and the kernel has closed the others.
    pub cut: bool,
}

/// Who is at the other end, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its process; 0 where it cannot be seen from here (another container's).
    pub pid: i32,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Connection {
    /// Two ends in one process.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self { fd: a }, Self { fd: b }))
    }

    /// Connects to a server's socket.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let fd = seqpacket(SocketFlags::empty())?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Self { fd })
    }

    /// Connects to a socket at which this process is [expected](Expecting); does not wait. Nobody can send it a descriptor there, where
    /// the kernel knows of that.
    pub fn connect_to(path: &Path) -> io::Result<Self> {
        let fd = seqpacket(SocketFlags::NONBLOCK)?;
        let connection = Self { fd };
        connection.let_descriptors_come(false)?;
        rustix::net::connect(&connection.fd, &SocketAddrUnix::new(path)?)?;
        Ok(connection)
    }

    /// Whether the other end may send descriptors: else it is told that it may not (Linux 6.16; an older kernel lets them come). One that
    /// waits in a queue is closed by whoever takes or drops the queue, and closing may take as long as its sender likes.
    pub fn let_descriptors_come(&self, may: bool) -> io::Result<()> {
        let_descriptors_come(&self.fd, may)
    }

    /// Who is at the other end: the process that connected, or the one that began to listen. The kernel wrote it down then, and
    /// it cannot be changed.
    pub fn peer(&self) -> io::Result<Peer> {
        // Not rustix's: there a process that cannot be seen from here, number 0, is not a valid value.
        let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, all of the structure, into what may hold any integers.
        let failed = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        if failed != 0 || length as usize != size_of::<libc::ucred>() {
            let code = std::io::Error::last_os_error().raw_os_error();
            return Err(code.map_or(Errno::INVAL, Errno::from_raw_os_error));
        }
        Ok(Peer { uid: credentials.uid, pid: credentials.pid })
    }

    /// Whether a process of this process's own user is at the other end. This process says nothing to, and takes nothing from,
    /// a process of another user.
    pub fn is_own_users(&self) -> io::Result<bool> {
        Ok(self.peer()?.uid == own_user())
    }

    /// Whether it is one that sees this process, and of this user beyond doubt: who has no number in this namespace of users has the
    /// number of all those that have none.
    pub fn is_neighbours(&self) -> io::Result<bool> {
        Ok(is_neighbour(self.peer()?, own_user(), user_without_number()))
    }

    /// Sends a message and descriptors beside it.
    pub fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
        assert!(
            !message.is_empty() && message.len() <= MAX_MESSAGE_BYTES && descriptors.len() <= MAX_DESCRIPTORS
        );
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let fits = beside.push(SendAncillaryMessage::ScmRights(descriptors));
            assert!(fits, "the space is for the most descriptors");
        }
        let flags = flags | SendFlags::NOSIGNAL;
        io::retry_on_intr(|| rustix::net::sendmsg(&self.fd, &[IoSlice::new(message)], &mut beside, flags))?;
        Ok(())
    }

    /// Receives a message into `buffer`, and how long it is: 0 when the other end has closed. Descriptors are refused.
    pub fn receive(&self, buffer: &mut [u8; MAX_MESSAGE_BYTES], flags: RecvFlags) -> io::Result<usize> {
        let mut none = RecvAncillaryBuffer::new(&mut []);
        Ok(self.receive_into(buffer, &mut none, flags)?.0)
    }

    /// Receives a message and the descriptors beside it, as far as this process has room for them.
    pub fn receive_with_descriptors(
        &self,
        buffer: &mut [u8; MAX_MESSAGE_BYTES],
        flags: RecvFlags,
    ) -> io::Result<(usize, Received)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let (length, cut) = self.receive_into(buffer, &mut beside, flags)?;
        let rights = beside.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        Ok((length, Received { descriptors: rights.flatten().collect(), cut }))
    }

    fn receive_into(
        &self,
        buffer: &mut [u8; MAX_MESSAGE_BYTES],
        beside: &mut RecvAncillaryBuffer<'_>,
        flags: RecvFlags,
    ) -> io::Result<(usize, bool)> {
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let mut slices = [IoSliceMut::new(buffer)];
        let mut receive = || io::retry_on_intr(|| rustix::net::recvmsg(&self.fd, &mut slices, beside, flags));
        let received = match receive() {
            // The other end closed with words of ours unread. The kernel says so once, before the last words of the
            // other end, and those say why it closed.
            Err(Errno::CONNRESET) => receive()?,
            received => received?,
        };
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(Errno::MSGSIZE);
        }
        Ok((received.bytes, received.flags.contains(ReturnFlags::CTRUNC)))
    }
}

/// The user in whose name this process acts, as the kernel tells the other end of a socket.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// What the kernel says of users that have no number in this process's namespace.
fn user_without_number() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(65_534)
}

fn is_neighbour(peer: Peer, own: u32, without_number: u32) -> bool {
    peer.uid == own && own != without_number && peer.pid != 0
}

fn let_descriptors_come(fd: &OwnedFd, may: bool) -> io::Result<()> {
    // Its number on the architectures that this runs on.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let may = libc::c_int::from(may);
    // SAFETY: the kernel reads as many bytes as are said, those of an integer that lives as long as the call; what option this is, or that
    // it is none, has no effect on this process's memory.
    let failed = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const may).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match std::io::Error::last_os_error().raw_os_error() {
        Some(code) if failed != 0 && code != libc::ENOPROTOOPT => Err(Errno::from_raw_os_error(code)),
        _ => Ok(()),
    }
}

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

/// Where one process is expected, for a while: a socket in a directory that other users cannot enter. The file goes away with it.
#[derive(Debug)]
pub struct Expecting {
    _file: SocketFile,
    fd: OwnedFd,
}

impl Expecting {
    /// Listens on `path`. What has that name is refused, and stays. Who connects can send no descriptor, where the kernel knows of that.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let system = |error: Errno| ListenError::System { path: path.to_owned(), reason: error.to_string() };
        let address = address(path)?;
        let fd = seqpacket(SocketFlags::NONBLOCK).map_err(system)?;
        // Connections inherit it.
        let_descriptors_come(&fd, false).map_err(system)?;
        let file = SocketFile::bind(&fd, path, &address)?;
        rustix::net::listen(&fd, 16).map_err(system)?;
        Ok(Self { _file: file, fd })
    }

    /// Takes the next connection; does not wait for one.
    pub fn accept(&self) -> io::Result<Connection> {
        let fd = rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC)?;
        Ok(Connection { fd })
    }

    /// Removes sockets of this kind, by what their names begin with, whose processes were killed.
    pub fn remove_left_behind(directory: &Path, prefix: &str) {
        let entries = std::fs::read_dir(directory).into_iter().flatten().take(MOST_ENTRIES).flatten();
        for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
            let path = entry.path();
            if is_old_socket(&path) && is_left(&path) {
                let _ = rustix::fs::unlink(&path);
            }
        }
    }
}

/// Names that are looked at in a directory, at most.
const MOST_ENTRIES: usize = 4096;
/// Age from which on a socket's file may be left behind: a young one's may be about to be bound.
const OLD: Duration = Duration::from_secs(60);

fn is_old_socket(path: &Path) -> bool {
    let Ok(found) = std::fs::symlink_metadata(path) else { return false };
    let age = found.modified().ok().and_then(|made| SystemTime::now().duration_since(made).ok());
    found.file_type().is_socket() && age.is_some_and(|age| age >= OLD)
}

/// Whether no process has the socket at `path`. None that has it takes notice.
fn is_left(path: &Path) -> bool {
    let ask = || -> io::Result<()> {
        // Of another kind than any that is expected: it is told so where there is one, whether it listens or not.
        let fd =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)
    };
    ask() == Err(Errno::CONNREFUSED)
}

impl AsFd for Expecting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A server's socket. The file goes away with it.
#[derive(Debug)]
pub struct Listener {
    _file: SocketFile,
    fd: OwnedFd,
    /// Held as long as the server lives: its holder owns the path. Dropped behind the socket's file: what is removed is
    /// never a successor's.
    _lock: Lock,
}

/// A socket's file, which goes away with this. Another's under the same name is not ours to remove.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    file: File,
}

/// A lock beside a socket. Its file goes away with it.
#[derive(Debug)]
struct Lock {
    fd: OwnedFd,
    path: PathBuf,
}

/// Which file it is, whatever its name. No other has this number while a descriptor of it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct File {
    device: u64,
    number: u64,
}

impl File {
    fn of(fd: impl AsFd) -> io::Result<Self> {
        rustix::fs::fstat(fd).map(|found| Self::from(&found))
    }

    fn named(path: &Path) -> io::Result<Self> {
        rustix::fs::lstat(path).map(|found| Self::from(&found))
    }

    fn is_named(self, path: &Path) -> bool {
        Self::named(path) == Ok(self)
    }
}

impl From<&rustix::fs::Stat> for File {
    fn from(found: &rustix::fs::Stat) -> Self {
        Self { device: found.st_dev, number: found.st_ino }
    }
}

/// Why a process could not listen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// Another server listens there, or another program.
    #[error("another process listens on {path}")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The path does not fit into a socket's address.
    #[error("expected a socket path of at most {LONGEST_PATH} bytes, got {got} in {path}")]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its bytes.
        got: usize,
    },
    /// Something else is there, which is not ours to remove.
    #[error("cannot listen on {path}: it exists, and is not a socket")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// What stands where its lock would be is something else, which is not ours to remove.
    #[error("cannot listen on {path}: {lock} is not a server's lock file (that would be empty)")]
    NoLock {
        /// The path.
        path: PathBuf,
        /// The path with `.lock` behind it.
        lock: PathBuf,
    },
    /// The system said no.
    #[error("cannot listen on {path}: {reason}")]
    System {
        /// The path.
        path: PathBuf,
        /// What it said.
        reason: String,
    },
}

impl Listener {
    /// Listens on `path`. A socket that a crashed server left behind is removed. A server holds a lock beside its socket as long
    /// as it lives; other programs do not, so none of them may be listening there either. What is refused stays as it is.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let system = |error: Errno| ListenError::System { path: path.to_owned(), reason: error.to_string() };
        let in_use = || ListenError::InUse { path: path.to_owned() };
        let address = address(path)?;
        let is_socket = |found: &rustix::fs::Stat| FileType::from_raw_mode(found.st_mode) == FileType::Socket;
        let left = match rustix::fs::lstat(path) {
            Ok(found) if !is_socket(&found) => return Err(ListenError::NoSocket { path: path.to_owned() }),
            Ok(_) if is_listened_to(path).map_err(system)? => return Err(in_use()),
            Ok(found) => Some(File::from(&found)),
            Err(_) => None,
        };
        let lock = Lock::beside(path)?;
        if left.is_some_and(|left| left.is_named(path)) {
            rustix::fs::unlink(path).map_err(system)?;
        }
        let fd = seqpacket(SocketFlags::NONBLOCK).map_err(system)?;
        let file = SocketFile::bind(&fd, path, &address)?;
        rustix::net::listen(&fd, 128).map_err(system)?;
        Ok(Self { _file: file, fd, _lock: lock })
    }

    /// Takes the next connection; does not wait for one.
    pub fn accept(&self) -> io::Result<Connection> {
        let fd = rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC)?;
        Ok(Connection { fd })
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix, ListenError> {
    let got = path.as_os_str().len();
    if got > LONGEST_PATH {
        return Err(ListenError::PathTooLong { path: path.to_owned(), got });
    }
    let system = |error: Errno| ListenError::System { path: path.to_owned(), reason: error.to_string() };
    SocketAddrUnix::new(path).map_err(system)
}

impl SocketFile {
    /// Gives the socket this name, for its user alone.
    fn bind(fd: &OwnedFd, path: &Path, address: &SocketAddrUnix) -> Result<Self, ListenError> {
        let bind = || -> io::Result<Self> {
            rustix::net::bind(fd, address)?;
            let named = Self { path: path.to_owned(), file: File::named(path)? };
            rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
            Ok(named)
        };
        bind().map_err(|error| match error {
            Errno::ADDRINUSE => ListenError::InUse { path: path.to_owned() },
            error => ListenError::System { path: path.to_owned(), reason: error.to_string() },
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.file.is_named(&self.path) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Whether a process listens on the socket at `path`, whatever its kind.
fn is_listened_to(path: &Path) -> io::Result<bool> {
    let fd = seqpacket(SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&fd, &SocketAddrUnix::new(path)?) {
        // Of another kind, or with no room for one more connection.
        Ok(()) | Err(Errno::PROTOTYPE | Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

impl Lock {
    fn beside(socket: &Path) -> Result<Self, ListenError> {
        use rustix::fs::{FlockOperation, Mode, OFlags};
        let system =
            |error: Errno| ListenError::System { path: socket.to_owned(), reason: error.to_string() };
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = lock_path(socket);
        loop {
            let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(system)?;
            let found = rustix::fs::fstat(&fd).map_err(system)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_size != 0 {
                return Err(ListenError::NoLock { path: socket.to_owned(), lock: path });
            }
            rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(
                |error| match error {
                    Errno::WOULDBLOCK => ListenError::InUse { path: socket.to_owned() },
                    error => system(error),
                },
            )?;
            // A lock whose owner removed it between these lines locks nothing: it has no name by which others would find it.
            if File::from(&found).is_named(&path) {
                return Ok(Self { fd, path });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if File::of(&self.fd).is_ok_and(|own| own.is_named(&self.path)) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket_path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("penstock-test-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_second_server_on_a_socket_is_refused_and_the_first_stays() {
        let path = socket_path("second");
        let _first = Listener::bind(&path).unwrap();
        assert_eq!(Listener::bind(&path).unwrap_err(), ListenError::InUse { path: path.clone() });
        assert!(Connection::connect(&path).is_ok());
    }

    #[test]
    fn a_socket_left_by_a_crash_is_taken_over() {
        let path = socket_path("stale");
        std::mem::forget({
            let fd = seqpacket(SocketFlags::empty()).unwrap();
            rustix::net::bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            fd // bound, never listening, no lock: as after a crash
        });
        let listener = Listener::bind(&path).unwrap();
        assert!(Connection::connect(&path).is_ok());
        drop(listener);
        assert!(!path.exists(), "nothing is left behind");
    }

    // It was removed, as a socket that a crash had left.
    #[test]
    fn what_is_no_socket_is_refused_and_stays() {
        let path = socket_path("precious");
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(Listener::bind(&path).unwrap_err(), ListenError::NoSocket { path: path.clone() });
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        assert!(!lock_path(&path).exists());
        std::fs::remove_file(path).unwrap();
    }

    // Its socket was removed while it lived, and could not be found any more.
    #[test]
    fn what_another_program_listens_on_is_refused_and_stays() {
        for kind in [SocketType::STREAM, SocketType::SEQPACKET, SocketType::DGRAM] {
            let path = socket_path("anothers");
            let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            rustix::net::bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            if kind != SocketType::DGRAM {
                rustix::net::listen(&fd, 0).unwrap();
            }
            let own = File::named(&path).unwrap();
            // Also when its queue is full.
            for _ in 0..3 {
                assert_eq!(Listener::bind(&path).unwrap_err(), ListenError::InUse { path: path.clone() });
            }
            assert!(own.is_named(&path) && !lock_path(&path).exists(), "{kind:?}");
            std::fs::remove_file(path).unwrap();
        }
    }

    // `--socket Cargo` took Cargo.lock for its lock, and removed it in the end.
    #[test]
    fn what_is_no_servers_lock_is_refused_and_stays() {
        let path = socket_path("project");
        std::fs::write(lock_path(&path), "precious").unwrap();
        let lock = lock_path(&path);
        assert_eq!(
            Listener::bind(&path).unwrap_err(),
            ListenError::NoLock { path: path.clone(), lock: lock.clone() }
        );
        assert_eq!(std::fs::read_to_string(&lock).unwrap(), "precious");
        assert!(!path.exists());
        // One that a crashed server has left is empty.
        std::fs::write(&lock, "").unwrap();
        drop(Listener::bind(&path).unwrap());
        assert!(!path.exists() && !lock.exists());
    }

    #[test]
    fn a_server_that_ends_leaves_its_successors_socket_alone() {
        let path = socket_path("successor");
        let first = Listener::bind(&path).unwrap();
        // As when the directory is cleared: the path is free, though the first still lives.
        for gone in [path.clone(), lock_path(&path)] {
            std::fs::remove_file(gone).unwrap();
        }
        let second = Listener::bind(&path).unwrap();
        drop(first);
        assert!(Connection::connect(&path).is_ok(), "the second server's socket is there");
        assert!(matches!(Listener::bind(&path), Err(ListenError::InUse { .. })), "and its lock");
        drop(second);
        assert!(!path.exists() && !lock_path(&path).exists());
    }

    #[test]
    fn of_servers_that_take_turns_on_a_path_none_loses_its_socket_to_another() {
        let path = socket_path("turns");
        let turn = |_| {
            if let Ok(_listener) = Listener::bind(&path) {
                assert!(Connection::connect(&path).is_ok(), "who has the path is found by it");
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                // Few enough that all of the others' looks fit into the queue of one that accepts none.
                scope.spawn(|| (0..30).for_each(turn));
            }
        });
        assert!(!path.exists() && !lock_path(&path).exists());
    }

    #[test]
    fn nobody_to_accept_is_not_waited_for() {
        let listener = Listener::bind(&socket_path("nobody")).unwrap();
        assert_eq!(listener.accept().unwrap_err(), Errno::AGAIN);
    }

    #[test]
    fn descriptors_arrive_with_their_message_and_nowhere_else() {
        let (a, b) = Connection::pair().unwrap();
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        a.send(b"one", &[a.as_fd(), b.as_fd()], SendFlags::empty()).unwrap();
        a.send(b"two", &[a.as_fd()], SendFlags::empty()).unwrap();
        let (length, came) = b.receive_with_descriptors(&mut buffer, RecvFlags::empty()).unwrap();
        assert_eq!((&buffer[..length], came.descriptors.len(), came.cut), (&b"one"[..], 2, false));
        assert_eq!(
            b.receive(&mut buffer, RecvFlags::empty()),
            Ok(3),
            "and one that has no room for them drops them"
        );
        drop((a, came)); // which are other ends of the same sockets
        assert_eq!(b.receive(&mut buffer, RecvFlags::empty()), Ok(0));
    }

    #[test]
    fn the_last_words_arrive_when_the_other_end_closes_without_having_read_ours() {
        let (a, b) = Connection::pair().unwrap();
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        b.send(b"never read", &[], SendFlags::empty()).unwrap();
        a.send(b"farewell", &[], SendFlags::empty()).unwrap();
        drop(a);
        assert_eq!(b.receive(&mut buffer, RecvFlags::empty()), Ok(8));
        assert_eq!(&buffer[..8], b"farewell");
        assert_eq!(b.receive(&mut buffer, RecvFlags::empty()), Ok(0));
    }

    #[test]
    fn who_is_expected_comes_by_a_file_for_this_user_alone_which_goes_away() {
        use std::os::unix::fs::MetadataExt as _;
        let path = socket_path("expecting");
        let expecting = Expecting::bind(&path).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Expecting::bind(&path).unwrap_err(), ListenError::InUse { path: path.clone() });
        let (near, far) = (Connection::connect_to(&path).unwrap(), expecting.accept().unwrap());
        assert!(near.is_neighbours().unwrap() && far.is_neighbours().unwrap());
        drop(expecting);
        assert!(!path.exists() && Connection::connect_to(&path).is_err());
        let path = Path::new("/tmp").join("x".repeat(103));
        assert_eq!(Expecting::bind(&path).unwrap_err(), ListenError::PathTooLong { path, got: 108 });
    }

    // Closing one takes as long as its sender likes: a TCP connection with bytes that nobody takes lingers for hours.
    #[test]
    fn no_descriptor_waits_at_either_end_of_what_is_expected_until_one_is_allowed() {
        use std::io::Write as _;
        let (near, far) = Connection::pair().unwrap();
        far.let_descriptors_come(false).unwrap();
        if near.send(b"mine", &[near.as_fd()], SendFlags::DONTWAIT).is_ok() {
            let _ = writeln!(std::io::stderr(), "skipped: this kernel knows no SO_PASSRIGHTS");
            return;
        }
        let path = socket_path("descriptors");
        let expecting = Expecting::bind(&path).unwrap();
        let near = Connection::connect_to(&path).unwrap();
        // Before it is accepted, too.
        assert_eq!(near.send(b"mine", &[near.as_fd()], SendFlags::DONTWAIT), Err(Errno::PERM));
        let far = expecting.accept().unwrap();
        assert_eq!(near.send(b"mine", &[near.as_fd()], SendFlags::DONTWAIT), Err(Errno::PERM));
        assert_eq!(far.send(b"yours", &[far.as_fd()], SendFlags::DONTWAIT), Err(Errno::PERM));
        far.let_descriptors_come(true).unwrap();
        near.send(b"mine", &[near.as_fd()], SendFlags::DONTWAIT).unwrap();
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        let (length, came) = far.receive_with_descriptors(&mut buffer, RecvFlags::DONTWAIT).unwrap();
        assert_eq!((length, came.descriptors.len()), (4, 1));
    }

    #[test]
    fn sockets_that_killed_processes_left_are_removed_and_no_others() {
        use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
        let folder = socket_path("left");
        std::fs::create_dir(&folder).unwrap();
        let (dead, young, alive) = (folder.join("b-dead"), folder.join("b-young"), folder.join("b-alive"));
        let (other, file) = (folder.join("server"), folder.join("b-file"));
        let leave = |path: &Path| {
            let fd = seqpacket(SocketFlags::empty()).unwrap();
            rustix::net::bind(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
            fd
        };
        [&dead, &young, &other].into_iter().for_each(|path| drop(leave(path)));
        std::fs::write(&file, "").unwrap();
        // That does not listen so far.
        let _bound = leave(&alive);
        let hour_ago = Timespec {
            tv_sec: -3600 + std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64,
            tv_nsec: 0,
        };
        let times = Timestamps { last_access: hour_ago, last_modification: hour_ago };
        for path in [&dead, &alive, &other, &file] {
            rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
        Expecting::remove_left_behind(&folder, "b-");
        assert_eq!(
            [&dead, &young, &alive, &other, &file].map(|path| path.exists()),
            [false, true, true, true, true]
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_neighbour_is_seen_from_here_and_of_a_user_that_has_a_number() {
        let peer = |uid, pid| Peer { uid, pid };
        assert!(is_neighbour(peer(1000, 7), 1000, 65_534));
        assert!(!is_neighbour(peer(1001, 7), 1000, 65_534), "another user");
        assert!(!is_neighbour(peer(1000, 0), 1000, 65_534), "in another container");
        // In a namespace of users in which neither of two users has a number.
        assert!(!is_neighbour(peer(65_534, 7), 65_534, 65_534));
    }

    #[test]
    fn the_kernel_says_who_is_there() {
        let (a, _b) = Connection::pair().unwrap();
        assert_eq!(a.peer().unwrap(), Peer { uid: own_user(), pid: std::process::id() as i32 });
        assert!(a.is_own_users().unwrap());
    }
}
