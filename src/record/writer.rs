//! Writes a record while it happens.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};

use super::event::{Event, Stamped};
use super::{junit, plain, summary, timeline};

/// The views are made anew at most so often while the scenario plays.
const BETWEEN_VIEWS: Duration = Duration::from_secs(1);

/// A record: in memory, and in a directory if there is one.
#[derive(Debug, Clone)]
pub struct Record {
    shared: Arc<Shared>,
    views: Arc<Mutex<Option<JoinHandle<()>>>>,
}

#[derive(Debug)]
struct Shared {
    directory: Option<PathBuf>,
    inner: Mutex<Inner>,
    woken: Condvar,
}

#[derive(Debug)]
struct Inner {
    zero: Option<Instant>,
    lines: Option<File>,
    events: Vec<Stamped>,
    /// The first thing that could not be written.
    error: Option<anyhow::Error>,
    ended: bool,
}

impl Record {
    /// Begins a record. A directory is made if need be, and must be empty.
    ///
    /// # Errors
    /// When the directory cannot be made or is not empty.
    pub fn open(directory: Option<&Path>) -> Result<Self> {
        let lines = directory.map(prepare).transpose()?;
        let shared = Arc::new(Shared {
            directory: directory.map(Path::to_owned),
            inner: Mutex::new(Inner { zero: None, lines, events: Vec::new(), error: None, ended: false }),
            woken: Condvar::new(),
        });
        let views = directory.map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.keep_views())
        });
        Ok(Self { shared, views: Arc::new(Mutex::new(views)) })
    }

    /// Time zero is now. What was before has it, too.
    pub fn zero(&self) {
        self.shared.lock().zero = Some(Instant::now());
    }

    /// Milliseconds from time zero to then.
    pub fn ms(&self, then: Instant) -> f64 {
        self.shared.lock().ms(then)
    }

    /// Adds an event, which is on its way to the disk when this returns.
    pub fn add(&self, step: Option<&str>, event: Event) {
        let now = jiff::Timestamp::now();
        let mut inner = self.shared.lock();
        // Under the lock, so that the lines are in the order of their times.
        let ms = inner.ms(Instant::now());
        let stamped = Stamped { ms, wall: format!("{now:.6}"), step: step.map(str::to_owned), event };
        if let Err(error) = inner.append(&stamped) {
            inner.error.get_or_insert(error);
        }
        inner.events.push(stamped);
        self.shared.woken.notify_all();
    }

    /// Writes a file of the record; gives its name. Without a directory only the name is made.
    pub fn file(&self, name: &str, content: &[u8]) -> String {
        if let Some(path) = self.path(name) {
            self.keep_error(put(&path, content));
        }
        name.to_owned()
    }

    /// The same of what another file has now.
    pub fn copy(&self, name: &str, mut from: &File) {
        if let Some(path) = self.path(name) {
            let rewound = from.rewind().and_then(|()| from.metadata()).context("cannot read an output");
            self.keep_error(rewound.and_then(|now| put(&path, from.take(now.len()))));
        }
    }

    /// Where a file of the record is to be; its directory is there.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        let path = self.shared.directory.as_ref()?.join(name);
        self.keep_error(directory_of(&path).with_context(|| shown(&path)));
        Some(path)
    }

    fn keep_error(&self, result: Result<()>) {
        if let Err(error) = result {
            self.shared.lock().error.get_or_insert(error);
        }
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Stamped> {
        self.shared.lock().events.clone()
    }

    /// Makes the last views.
    ///
    /// # Errors
    /// The first thing that could not be written, then or before.
    pub fn finish(&self) -> Result<()> {
        self.shared.lock().ended = true;
        self.shared.woken.notify_all();
        let views = self.views.lock().map_err(|_| anyhow!("a thread panicked"))?.take();
        if let Some(views) = views {
            views.join().map_err(|_| anyhow!("the thread that draws the record panicked"))?;
        }
        self.shared.lock().error.take().map_or(Ok(()), |error| Err(error.context("the record is not whole")))
    }
}

fn prepare(directory: &Path) -> Result<File> {
    fs::create_dir_all(directory).with_context(|| shown(directory))?;
    if fs::read_dir(directory).with_context(|| shown(directory))?.next().is_some() {
        bail!("{} is not empty: give a new directory for the record", directory.display());
    }
    let path = directory.join("events.jsonl");
    File::options().append(true).create_new(true).open(&path).with_context(|| shown(&path))
}

/// Puts a file in its place: all of it, or nothing.
fn put(path: &Path, mut content: impl Read) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}"));
    let written = File::create(&new).and_then(|mut file| io::copy(&mut content, &mut file));
    let written = written.and_then(|_| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.with_context(|| shown(path))
}

fn directory_of(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn shown(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

impl Inner {
    /// In whole microseconds.
    fn ms(&self, then: Instant) -> f64 {
        let since = self.zero.map_or(Duration::ZERO, |zero| then.saturating_duration_since(zero));
        (since.as_secs_f64() * 1e6).round() / 1e3
    }

    /// One write a line: a reader, or whoever comes after a crash, never sees half of one.
    fn append(&mut self, event: &Stamped) -> Result<()> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let line = serde_json::to_string(event)? + "\n";
        let before = lines.metadata()?.len();
        lines.write_all(line.as_bytes()).map_err(|error| {
            // On a full disk a part of it may be there.
            let _ = lines.set_len(before);
            Error::from(error).context("cannot write events.jsonl")
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn keep_views(&self) {
        let mut drawn = 0;
        loop {
            let (events, ended) = {
                let inner = self.lock();
                let idle = |inner: &mut Inner| inner.events.len() == drawn && !inner.ended;
                let inner = self.woken.wait_while(inner, idle).unwrap_or_else(std::sync::PoisonError::into_inner);
                (inner.events.clone(), inner.ended)
            };
            drawn = events.len();
            let start = Instant::now();
            if let Err(error) = self.draw(&events) {
                self.lock().error.get_or_insert(error);
            }
            if ended {
                return;
            }
            // Views of very many events take a while: that must not become all that this machine does.
            let pause = BETWEEN_VIEWS.max(start.elapsed() * 20);
            let inner = self.lock();
            let _ = self.woken.wait_timeout_while(inner, pause, |inner| !inner.ended);
        }
    }

    fn draw(&self, events: &[Stamped]) -> Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let views = [
            ("junit.xml", junit::junit(events)?),
            ("summary.md", summary(events)),
            ("timeline.svg", timeline::svg(events)),
        ];
        let written = views.map(|(name, text)| put(&directory.join(name), plain(&text).as_bytes()));
        written.into_iter().collect()
    }
}
