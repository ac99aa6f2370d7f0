//! The directory of a record, in which only what the record itself made is written to.
//!
//! Somebody else may be allowed to write there, too (`/tmp`, a workspace), and root may be who records. So every file is
//! made anew below one open directory, and no link is followed on the way to it (`openat2(2)`, Linux 5.6).

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// An open directory and its path, as shown.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    open: File,
}

impl Folder {
    /// Makes it if need be.
    ///
    /// # Errors
    /// When it cannot be made or is not empty.
    pub(super) fn begin(path: &Path) -> Result<Self> {
        let shown = || format!("cannot write {}", path.display());
        if path.symlink_metadata().is_ok() && !path.is_dir() {
            bail!("{} is not a directory: give a new one for the record", path.display());
        }
        fs::create_dir_all(path).with_context(shown)?;
        let open = File::open(path).with_context(shown)?;
        if fs::read_dir(path).with_context(shown)?.next().is_some() {
            bail!("{} is not empty: give a new directory for the record", path.display());
        }
        Ok(Self { path: path.to_owned(), open })
    }

    /// A new file, to append to and to read.
    ///
    /// # Errors
    /// When it is there or cannot be made.
    pub(super) fn create(&self, name: &str) -> Result<File> {
        let made = self.make_way(Path::new(name)).and_then(|()| self.new_file(Path::new(name)));
        made.with_context(|| self.shown(name))
    }

    /// Puts a file in its place, of which a former one goes: all of it, or nothing.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn put(&self, name: &str, content: &mut dyn Read) -> Result<()> {
        self.replace(Path::new(name), content).with_context(|| self.shown(name))
    }

    fn replace(&self, path: &Path, content: &mut dyn Read) -> io::Result<()> {
        self.make_way(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let new = format!(".{name}");
        let parent = self.directory(path.parent().unwrap_or(Path::new("")))?;
        // Nobody but the record has business there.
        let _ = unlinkat(&parent, new.as_str(), UnlinkatFlags::NoRemoveDir);
        let written = self.new_file(&path.with_file_name(&new)).and_then(|mut file| io::copy(content, &mut file));
        let written = written.and_then(|_| Ok(renameat(&parent, new.as_str(), &parent, &*name)?));
        if written.is_err() {
            let _ = unlinkat(&parent, new.as_str(), UnlinkatFlags::NoRemoveDir);
        }
        written
    }

    /// The directories on the way to a file.
    fn make_way(&self, path: &Path) -> io::Result<()> {
        let mut above: Vec<_> = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).collect();
        above.reverse();
        for directory in above {
            let parent = self.directory(directory.parent().unwrap_or(Path::new("")))?;
            match mkdirat(&parent, directory.file_name().unwrap_or_default(), Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn new_file(&self, path: &Path) -> io::Result<File> {
        self.open(path, OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_EXCL, 0o666)
    }

    fn directory(&self, path: &Path) -> io::Result<File> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        self.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)
    }

    /// The mode is less what the umask takes.
    fn open(&self, path: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        let mode = Mode::from_bits_truncate(mode);
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(resolve);
        Ok(openat2(&self.open, path, how).map(File::from)?)
    }

    fn shown(&self, name: &str) -> String {
        format!("cannot write {}", self.path.join(name).display())
    }
}
