//! Files that somebody else names: opening them waits for nobody and wakes no device, and they are read up to a bound.

use std::fs::{File, FileType};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// As many bytes as a file may have that people write.
pub const MOST: u64 = 1 << 20;
/// How long a pipe may take to give all that it has.
const PATIENCE: Duration = Duration::from_secs(10);

/// A handle on whatever is there (`O_PATH`): no pipe is waited for, and no driver of a device is asked.
///
/// # Errors
/// As `open(2)`.
pub fn look(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_PATH).open(path)
}

/// Opens for reading what [`look`] has found, whatever its path leads to by now.
///
/// # Errors
/// As `open(2)`.
pub fn reopen(found: &File) -> io::Result<File> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// A plain file, open for reading.
///
/// # Errors
/// As `open(2)`, or when it is something else.
pub fn open_plain(path: &Path) -> Result<File> {
    reopen_plain(&look(path)?)
}

fn reopen_plain(found: &File) -> Result<File> {
    let kind = found.metadata()?.file_type();
    if !kind.is_file() {
        bail!("it is {}, not a file", name(kind));
    }
    Ok(reopen(found)?)
}

/// A text of at most [`MOST`] bytes. From a pipe as well, as `<(COMMAND)` of a shell is one: it can be read only once.
///
/// # Errors
/// One line with the path: it cannot be read, is a device or a directory, too long, no text, or a pipe into which nobody
/// writes.
pub fn read_text_once(path: &Path) -> Result<String> {
    let read = || {
        let found = look(path)?;
        let is_pipe = found.metadata()?.file_type().is_fifo();
        if is_pipe { from_pipe(&mut reopen(&found)?) } else { bounded(&mut reopen_plain(&found)?) }
    };
    read().and_then(text).with_context(|| format!("cannot read {}", path.display()))
}

/// The same from a plain file only.
///
/// # Errors
/// As [`read_text_once`].
pub fn read_text(path: &Path) -> Result<String> {
    let read = || bounded(&mut open_plain(path)?);
    read().and_then(text).with_context(|| format!("cannot read {}", path.display()))
}

fn text(bytes: Vec<u8>) -> Result<String> {
    let Ok(text) = String::from_utf8(bytes) else { bail!("it is no text (UTF-8)") };
    if text.contains('\0') {
        bail!("it is no text: there is a zero byte in it");
    }
    Ok(text)
}

fn bounded(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes)?;
    check_length(&bytes)?;
    Ok(bytes)
}

fn check_length(bytes: &[u8]) -> Result<()> {
    if bytes.len() as u64 > MOST {
        bail!("it has more than {} KiB: nobody writes such a file", MOST / 1024);
    }
    Ok(())
}

/// Reading tells of the end also while no writer has come yet; only what `poll` says tells these apart.
fn from_pipe(pipe: &mut File) -> Result<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let (mut bytes, mut left_alone) = (Vec::new(), false);
    loop {
        let mut room = [0; 4096];
        match pipe.read(&mut room) {
            Ok(0) if left_alone || !bytes.is_empty() => return Ok(bytes),
            Ok(read) if read > 0 => {
                bytes.extend(&room[..read]);
                check_length(&bytes)?;
                continue;
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
        left_alone = wait(pipe, until)?;
    }
}

/// Whether all who wrote have gone.
fn wait(pipe: &File, until: Instant) -> Result<bool> {
    let left = until.saturating_duration_since(Instant::now());
    let mut pipe = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    if poll(&mut pipe, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))? == 0 {
        bail!("it is a pipe, and not all was written into it in {} s", PATIENCE.as_secs());
    }
    Ok(pipe[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP)))
}

/// A plain file as whoever has `root` as their root directory finds it, at most [`MOST`] bytes; none if there is no such
/// file. Links in it lead to where they lead there (`openat2(2)`, Linux 5.6).
pub fn read_inside(root: &Path, path: &str) -> Option<Vec<u8>> {
    let root = File::open(root).ok()?;
    let open = |flags: OFlag| {
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
        openat2(&root, path, how).map(File::from).ok()
    };
    let found = open(OFlag::O_PATH)?;
    found.metadata().ok()?.is_file().then_some(())?;
    bounded(&mut reopen(&found).ok()?).ok()
}

/// What stands where a file should.
fn name(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}
