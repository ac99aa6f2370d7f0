//! Network namespaces: the one file that calls `setns` and `unshare`.
//!
//! Namespaces belong to threads. Every entry happens on a thread of its own that ends with the call,
//! so that no other code ever finds itself somewhere else.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

use super::{Missing, file};

/// Where `ip netns` keeps its names; ours are compatible with it.
pub const NAMES: &str = "/run/netns";
/// Where `ip netns` keeps the files that replace those of `/etc` inside a named namespace.
pub const ETC: &str = "/etc/netns";

nix::ioctl_none_bad!(
    /// The kind of namespace behind a file of nsfs: the `CLONE_NEW*` constant (`ioctl_ns(2)`, Linux 4.11).
    ns_get_nstype,
    0xb703
);

/// An open network namespace. It stays usable after its name or its last process has gone.
#[derive(Debug)]
pub struct NetNs {
    file: File,
    etc: Etc,
}

/// Files that replace those of `/etc` for programs and look-ups inside.
#[derive(Debug)]
enum Etc {
    None,
    /// All that are in this directory, as `ip netns exec` does.
    Directory(PathBuf),
    /// A container's, by name and content: mounts of another mount namespace cannot be mounted here.
    Copied(Vec<(&'static str, Vec<u8>)>),
}

impl NetNs {
    /// The namespace of the calling thread (`/proc/self` would be the main thread's).
    pub fn current() -> Result<Self> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// The namespace that `ip netns` calls `name`. Errors say whether the name or the namespace is bad.
    pub fn named(name: &str) -> Result<Self> {
        let path = name_to_path(name)?;
        ensure!(path.exists(), "no network namespace is named {name:?}: there is no {}", path.display());
        let mut ns = Self::open(&path)?;
        let etc = Path::new(ETC).join(name);
        if etc.is_dir() {
            ns.etc = Etc::Directory(etc);
        }
        Ok(ns)
    }

    /// The namespace of a running process.
    pub fn of_pid(pid: u32) -> Result<Self> {
        ensure!(!has_proc() || Path::new("/proc").join(pid.to_string()).exists(), "no process has the id {pid}");
        Self::open(&Self::path_of_pid(pid))
    }

    /// The namespace of a container's running process: names are looked up in there by the container's own hosts file
    /// and name servers, where it has such files.
    pub fn of_container(pid: u32) -> Result<Self> {
        let mut ns = Self::of_pid(pid)?;
        // What is there is the container's to choose: a link may lead anywhere in it, and a pipe or a device is no file.
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let read = |name: &'static str| Some((name, file::read_inside(&root, &format!("etc/{name}"))?));
        ns.etc = Etc::Copied(["hosts", "resolv.conf"].into_iter().filter_map(read).collect());
        Ok(ns)
    }

    /// A namespace by the file that stands for it. Whatever else is there is not opened: a pipe would make wait, and some
    /// devices do something when they are.
    pub fn open(path: &Path) -> Result<Self> {
        let found = file::look(path).map_err(|error| cannot_open(path, error))?;
        ensure!(fstatfs(&found)?.filesystem_type() == NSFS_MAGIC, "{} is not a network namespace", path.display());
        let file = file::reopen(&found).map_err(|error| cannot_open(path, error))?;
        // SAFETY: the ioctl takes no argument and only reads the type behind a descriptor we own.
        #[expect(unsafe_code, reason = "the ioctl has no safe wrapper")]
        let kind = unsafe { ns_get_nstype(file.as_raw_fd()) };
        match kind {
            Ok(kind) if kind == CloneFlags::CLONE_NEWNET.bits() => Ok(Self { file, etc: Etc::None }),
            Ok(_) => bail!("{} is a namespace, but not a network namespace", path.display()),
            Err(_) => bail!("{} is not a network namespace", path.display()),
        }
    }

    /// Device and inode: equal for two handles on the same namespace.
    pub fn id(&self) -> Result<(u64, u64)> {
        let meta = self.file.metadata()?;
        Ok((meta.dev(), meta.ino()))
    }

    /// The same of the namespace behind a path, without opening it: a host has more processes than one process may
    /// have files open.
    pub fn id_at(path: &Path) -> std::io::Result<(u64, u64)> {
        let meta = path.metadata()?;
        Ok((meta.dev(), meta.ino()))
    }

    /// The file that stands for the namespace of a process.
    pub fn path_of_pid(pid: u32) -> PathBuf {
        PathBuf::from(format!("/proc/{pid}/ns/net"))
    }

    /// The file that stands for the namespace that `ip netns` calls `name`.
    pub fn path_of_name(name: &str) -> Result<PathBuf> {
        name_to_path(name)
    }

    /// The descriptor, for requests that name a namespace by one (moving a link, say).
    pub fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `f` on a thread inside the namespace and gives its result. Sockets opened by `f` stay in the
    /// namespace, and so do processes it starts. Needs `CAP_SYS_ADMIN` unless it is the current one.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        if Self::current()?.id()? == self.id()? {
            return Ok(f());
        }
        on_own_thread(|| {
            self.enter()?;
            Ok(f())
        })
    }

    /// As [`run`](Self::run), with the namespace's own `/etc/hosts`, `/etc/resolv.conf` and whatever else
    /// stands in `/etc/netns/NAME`: for look-ups of names and for programs. `/sys` stays the caller's.
    pub fn run_with_etc<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        if matches!(self.etc, Etc::None) {
            return self.run(f);
        }
        on_own_thread(|| {
            self.enter()?;
            unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
            let none: Option<&Path> = None;
            mount(none, "/", none, MsFlags::MS_SLAVE | MsFlags::MS_REC, none)
                .context("cannot make the mounts private")?;
            match &self.etc {
                Etc::None => {}
                Etc::Directory(directory) => mount_all(directory)?,
                Etc::Copied(files) => mount_copies(files)?,
            }
            Ok(f())
        })
    }

    fn enter(&self) -> Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
            Errno::EPERM => anyhow::Error::new(Missing(
                "entering another network namespace needs CAP_SYS_ADMIN in the user namespace that owns it: use sudo \
                 (or podman unshare, if it is a rootless container's)"
                    .into(),
            )),
            errno => anyhow::Error::new(errno).context("cannot enter the network namespace"),
        })
    }

    /// Makes a namespace and gives it a name, as `ip netns add` does.
    pub fn create(name: &str) -> Result<Self> {
        let path = name_to_path(name)?;
        std::fs::create_dir_all(NAMES).with_context(|| format!("cannot make {NAMES}"))?;
        share_names()?;
        File::create_new(&path).with_context(|| format!("cannot make the network namespace {name:?}"))?;
        let made = on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace (use sudo)")?;
            let none: Option<&Path> = None;
            mount(Some("/proc/thread-self/ns/net"), &path, none, MsFlags::MS_BIND, none)
                .with_context(|| format!("cannot mount the network namespace at {}", path.display()))
        });
        if made.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        made?;
        Self::named(name)
    }

    /// Takes the name of a namespace away; the namespace goes with its last process. No such name is success.
    pub fn delete(name: &str) -> Result<()> {
        let path = name_to_path(name)?;
        if !path.exists() {
            return Ok(());
        }
        // EINVAL: a half-made one, a plain file that nothing is mounted on.
        match umount2(&path, MntFlags::MNT_DETACH) {
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(errno) => return Err(errno).with_context(|| format!("cannot unmount {}", path.display())),
        }
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Every namespace that has a name, sorted.
    pub fn names() -> Vec<String> {
        let Ok(entries) = Path::new(NAMES).read_dir() else { return Vec::new() };
        let mut names: Vec<_> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

/// Mounts every file of the directory over that of `/etc`.
fn mount_all(directory: &Path) -> Result<()> {
    for entry in directory.read_dir().with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry?;
        mount_over_etc(&entry.path(), &entry.file_name())?;
    }
    Ok(())
}

/// The same with files that exist in this mount namespace only, and are gone with it.
fn mount_copies(files: &[(&'static str, Vec<u8>)]) -> Result<()> {
    let (none, scratch): (Option<&Path>, _) = (None, Path::new("/run"));
    mount(none, scratch, Some("tmpfs"), MsFlags::empty(), none)
        .context("cannot mount a place for a container's files")?;
    for (name, text) in files {
        let copy = scratch.join(name);
        std::fs::write(&copy, text).with_context(|| format!("cannot copy a container's {name}"))?;
        mount_over_etc(&copy, OsStr::new(name))?;
    }
    umount2(scratch, MntFlags::MNT_DETACH).context("cannot unmount the place of a container's files")
}

fn mount_over_etc(file: &Path, name: &OsStr) -> Result<()> {
    let target = Path::new("/etc").join(name);
    if !target.exists() {
        return Ok(());
    }
    let none: Option<&Path> = None;
    mount(Some(file), &target, none, MsFlags::MS_BIND, none)
        .with_context(|| format!("cannot mount {} over {}", file.display(), target.display()))
}

/// Other mount namespaces must see names come and go, else a name deleted here stays busy there.
///
/// The directory is bound to itself once after a boot. Two that did so at once would each copy what the other had bound,
/// and more of them thousands of mounts, so all wait for the one that has its lock, as `ip netns` does.
fn share_names() -> Result<()> {
    let none: Option<&Path> = None;
    let share = || mount(none, NAMES, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none);
    if share().is_ok() {
        return Ok(());
    }
    let cannot = || format!("cannot share the mount {NAMES} (use sudo)");
    let directory = File::open(NAMES).with_context(cannot)?;
    let _locked = Flock::lock(directory, FlockArg::LockExclusive).map_err(|(_, errno)| errno).with_context(cannot)?;
    share()
        .or_else(|_| mount(Some(NAMES), NAMES, none, MsFlags::MS_BIND | MsFlags::MS_REC, none).and_then(|()| share()))
        .with_context(cannot)
}

fn name_to_path(name: &str) -> Result<PathBuf> {
    let mut parts = Path::new(name).components();
    let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.contains('/');
    ensure!(plain, "{name:?} is not the name of a network namespace: give a name without slashes, or an absolute path");
    Ok(Path::new(NAMES).join(name))
}

/// Without it nothing that is there can be told from what is not.
fn has_proc() -> bool {
    Path::new("/proc/version").exists()
}

fn cannot_open(path: &Path, error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        let text = format!(
            "opening the network namespace {} needs the rights of its owner (CAP_SYS_PTRACE): use sudo (or podman \
             unshare, if it is a rootless container's)",
            path.display()
        );
        return Missing(text).into();
    }
    if path.starts_with("/proc") && !has_proc() {
        return Missing(format!("cannot open the network namespace {}: /proc is not mounted", path.display())).into();
    }
    anyhow::Error::new(error).context(format!("cannot open the network namespace {}", path.display()))
}

fn on_own_thread<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".into()).spawn_scoped(scope, f)?;
        thread.join().map_err(|_| anyhow!("the thread inside the namespace panicked"))?
    })
}
