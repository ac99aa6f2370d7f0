//! Writes a record while it happens.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};

use super::event::{Event, Stamped};
use super::folder::Folder;
use super::{json, junit, plain, summary, timeline};

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
    folder: Option<Folder>,
    inner: Mutex<Inner>,
    woken: Condvar,
}

#[derive(Debug)]
struct Inner {
    zero: Option<Instant>,
    lines: Option<File>,
    events: Vec<Stamped>,
    /// What could not be written, each thing once.
    failed: Vec<String>,
    ended: bool,
}

impl Record {
    /// Begins a record. A directory is made if need be, and must be empty.
    ///
    /// # Errors
    /// When the directory cannot be made or is not empty.
    pub fn open(directory: Option<&Path>) -> Result<Self> {
        let folder = directory.map(Folder::begin).transpose()?;
        let lines = folder.as_ref().map(|folder| folder.create("events.jsonl")).transpose()?;
        let shared = Arc::new(Shared {
            folder,
            inner: Mutex::new(Inner { zero: None, lines, events: Vec::new(), failed: Vec::new(), ended: false }),
            woken: Condvar::new(),
        });
        let draw = |shared: Arc<Shared>| thread::Builder::new().spawn(move || shared.keep_views());
        let views = directory.map(|_| draw(Arc::clone(&shared)).context("cannot make a thread")).transpose()?;
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
            inner.keep(&error);
        }
        inner.events.push(stamped);
        self.shared.woken.notify_all();
    }

    /// Writes a file of the record; gives its name. Without a directory only the name is made.
    pub fn file(&self, name: &str, mut content: &[u8]) -> String {
        if let Some(folder) = &self.shared.folder {
            self.keep_error(folder.put(name, &mut content));
        }
        name.to_owned()
    }

    /// The same of what another file has now, from that byte on.
    pub fn copy(&self, name: &str, mut from: &File, first: u64) {
        if let Some(folder) = &self.shared.folder {
            let opened =
                from.seek(io::SeekFrom::Start(first)).and_then(|_| from.metadata()).context("cannot read an output");
            let put =
                |now: std::fs::Metadata| folder.put(name, &mut io::Read::take(from, now.len().saturating_sub(first)));
            self.keep_error(opened.and_then(put));
        }
    }

    /// A new file of the record, open for writing; none without a directory.
    ///
    /// # Errors
    /// When it cannot be made, or is there.
    pub fn create(&self, name: &str) -> Result<Option<File>> {
        self.shared.folder.as_ref().map(|folder| folder.create(name)).transpose()
    }

    fn keep_error(&self, result: Result<()>) {
        if let Err(error) = result {
            self.shared.lock().keep(&error);
        }
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Stamped> {
        self.shared.lock().events.clone()
    }

    /// Makes the last views.
    ///
    /// # Errors
    /// All that could not be written, then or before.
    pub fn finish(&self) -> Result<()> {
        self.shared.lock().ended = true;
        self.shared.woken.notify_all();
        let views = self.views.lock().map_err(|_| anyhow!("a thread panicked"))?.take();
        if let Some(views) = views {
            views.join().map_err(|_| anyhow!("the thread that draws the record panicked"))?;
        }
        let failed = self.shared.lock().failed.join("; ");
        if failed.is_empty() { Ok(()) } else { Err(anyhow!("the record is not whole: {failed}")) }
    }
}

impl Inner {
    fn keep(&mut self, error: &Error) {
        let said = format!("{error:#}");
        if !self.failed.contains(&said) {
            self.failed.push(said);
        }
    }

    /// In whole microseconds.
    fn ms(&self, then: Instant) -> f64 {
        let since = self.zero.map_or(Duration::ZERO, |zero| then.saturating_duration_since(zero));
        (since.as_secs_f64() * 1e6).round() / 1e3
    }

    /// One write a line: a reader, or whoever comes after a crash, never sees half of one.
    fn append(&mut self, event: &Stamped) -> Result<()> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let line = json(&serde_json::to_string(event)?) + "\n";
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
            self.draw(&events);
            if ended {
                return;
            }
            // Views of very many events take a while: that must not become all that this machine does.
            let pause = BETWEEN_VIEWS.max(start.elapsed() * 20);
            let inner = self.lock();
            let _ = self.woken.wait_timeout_while(inner, pause, |inner| !inner.ended);
        }
    }

    fn draw(&self, events: &[Stamped]) {
        let Some(folder) = &self.folder else { return };
        let views = [
            ("junit.xml", junit::junit(events)),
            ("summary.md", Ok(summary::summary(events))),
            ("timeline.svg", Ok(timeline::svg(events))),
        ];
        for (name, text) in views {
            let written = text.and_then(|text| folder.put(name, &mut plain(&text).as_bytes()));
            if let Err(error) = written {
                self.lock().keep(&error);
            }
        }
    }
}
