//! Whole processes: how long from their start to their end, and how much memory at most.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// The program under test.
pub(crate) const PLAYDEAD: &str = env!("CARGO_BIN_EXE_playdead");

/// The program is only to run another one and to tell how much memory that had.
const PEAK: &str = "PLAYDEAD_BENCH_PEAK";

/// What a process took.
pub(crate) struct Took {
    pub(crate) ms: f64,
    pub(crate) mib: f64,
}

/// Runs it to its end; it has to succeed. What it prints is thrown away.
pub(crate) fn run(program: &str, words: &[String]) -> Result<Took> {
    let start = Instant::now();
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    let (succeeded, kib) = wait(child.id())?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let first: Vec<_> = words.iter().take(4).collect();
    ensure!(succeeded, "{program} {first:?}... failed");
    Ok(Took { ms, mib: kib / 1024.0 })
}

/// The most memory that it has, in MiB. It is started by a small process: the kernel takes what the parent has as the
/// child's first peak (`setmax_mm_hiwater_rss` in `exec`), and this one has the lists of many peers.
pub(crate) fn peak(program: &str, words: &[String]) -> Result<f64> {
    let mut small = Command::new(std::env::current_exe()?);
    let output = small.env(PEAK, "").arg(program).args(words).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().with_context(|| format!("{program}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The small process; false if this is none.
pub(crate) fn tell_peak() -> Result<bool> {
    if std::env::var_os(PEAK).is_none() {
        return Ok(false);
    }
    let words: Vec<_> = std::env::args().skip(1).collect();
    let (program, words) = words.split_first().context("no program was named")?;
    println!("{}", run(program, words)?.mib);
    Ok(true)
}

/// [`run`] with the words of a line.
pub(crate) fn line(program: &str, line: &str) -> Result<Took> {
    run(program, &words(line))
}

/// What it printed, and how long it took in milliseconds.
pub(crate) fn output(program: &str, words: &[String]) -> Result<(String, f64)> {
    let start = Instant::now();
    let output = Command::new(program).args(words).stdin(Stdio::null()).output()?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), ms))
}

/// Whether it succeeded, and the most memory that it had, in KiB.
#[expect(unsafe_code, reason = "the standard library waits without the use of resources")]
fn wait(pid: u32) -> Result<(bool, f64)> {
    let mut status = 0;
    // SAFETY: both point to live values of the right types; the process is a child of ours that nobody else waits for.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let waited = libc::wait4(pid.cast_signed(), &raw mut status, 0, &raw mut usage);
        ensure!(waited == pid.cast_signed(), "cannot wait for process {pid}: {}", std::io::Error::last_os_error());
        usage
    };
    #[expect(clippy::cast_precision_loss, reason = "less than 2^52 KiB")]
    let kib = usage.ru_maxrss as f64;
    Ok((status == 0, kib))
}

/// Words as they are typed.
pub(crate) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}
