//! Runs the real program until it has begun so many system calls, of all of its threads, and kills it there by SIGKILL:
//! the last of them is not made any more.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It was killed at a call with this number.
    Killed(i64),
    /// It ended before it had begun as many calls.
    Ended(i32),
    /// It waited for something when its time was over, and was killed there.
    Waiting,
}

/// A run that is over.
pub(crate) struct Run {
    /// The process that was killed.
    pub(crate) root: Pid,
    pub(crate) end: End,
    /// When it was killed.
    pub(crate) killed: Instant,
    /// When the kernel said that it has ended: until then a killed process waits for its turn as any other.
    pub(crate) ended: Instant,
    /// The numbers of the calls that it began.
    pub(crate) calls: Vec<i64>,
}

struct Tracer {
    root: Pid,
    /// Since the program is that which is meant, and no more the shell that started it.
    began: bool,
    at: usize,
    run: Run,
    /// Processes that it has started and that are still traced. They live on.
    others: Vec<Pid>,
}

/// Kills it at the beginning of the call with that number, from 1 on; else, where `rest` is given, when it has run
/// for so long.
pub(crate) fn kill_at(command: &[OsString], at: usize, rest: Option<Duration>) -> Run {
    let root = start(command);
    let (over, is_over) = channel::<()>();
    thread::scope(|scope| {
        if let Some(rest) = rest {
            scope.spawn(move || {
                if is_over.recv_timeout(rest) == Err(RecvTimeoutError::Timeout) {
                    let _ = kill(root, Signal::SIGKILL);
                }
            });
        }
        let run = Run { root, end: End::Waiting, killed: Instant::now(), ended: Instant::now(), calls: Vec::new() };
        let mut tracer = Tracer { root, began: false, at, run, others: Vec::new() };
        tracer.follow();
        drop(over);
        tracer.run
    })
}

/// A shell that stops, is seized, and becomes the program: nobody but the program's own calls are counted.
#[expect(clippy::zombie_processes, reason = "the tracer waits for it, by its id")]
fn start(command: &[OsString]) -> Pid {
    let mut shell = Command::new("sh");
    shell.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]).args(command);
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = shell.spawn().unwrap();
    let root = Pid::from_raw(child.id().cast_signed());
    waitpid(root, Some(WaitPidFlag::WUNTRACED)).unwrap();
    let options = [
        Options::PTRACE_O_TRACESYSGOOD,
        Options::PTRACE_O_TRACECLONE,
        Options::PTRACE_O_TRACEFORK,
        Options::PTRACE_O_TRACEVFORK,
        Options::PTRACE_O_TRACEEXEC,
        Options::PTRACE_O_EXITKILL,
    ];
    ptrace::seize(root, options.into_iter().collect()).unwrap();
    kill(root, Signal::SIGCONT).unwrap();
    root
}

impl Tracer {
    /// Until nobody is traced any more: who is left lives on by itself then.
    fn follow(&mut self) {
        // Threads trace on their own: those of other tests are none of this one's business.
        let mine = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            match waitpid(None, Some(mine)) {
                Ok(status) => self.heed(status),
                Err(Errno::EINTR) => {}
                Err(Errno::ECHILD) => return,
                Err(errno) => panic!("cannot wait for the traced program: {errno}"),
            }
        }
    }

    fn heed(&mut self, status: WaitStatus) {
        match status {
            WaitStatus::Exited(pid, code) => self.gone(pid, End::Ended(code)),
            WaitStatus::Signaled(pid, ..) => self.gone(pid, End::Waiting),
            WaitStatus::PtraceSyscall(pid) => self.call(pid),
            WaitStatus::PtraceEvent(pid, _, event) => self.event(pid, event),
            WaitStatus::Stopped(pid, signal) => self.go_on(pid, Some(signal)),
            WaitStatus::Continued(_) | WaitStatus::StillAlive => {}
        }
    }

    fn gone(&mut self, pid: Pid, end: End) {
        self.others.retain(|other| *other != pid);
        if pid != self.root {
            return;
        }
        self.run.ended = Instant::now();
        if !matches!(self.run.end, End::Killed(_)) {
            self.run.end = end;
            self.run.killed = self.run.ended;
        }
        self.at = 0;
        // They may be running; stopped, they can be let go.
        for other in &self.others {
            let _ = ptrace::interrupt(*other);
        }
    }

    fn is_over(&self) -> bool {
        self.at == 0
    }

    fn call(&mut self, pid: Pid) {
        let is_begin = ptrace::syscall_info(pid).is_ok_and(|info| info.op == nix::libc::PTRACE_SYSCALL_INFO_ENTRY);
        if self.began && is_begin && !self.is_over() {
            let number = number(pid);
            self.run.calls.push(number);
            if self.run.calls.len() == self.at {
                self.run.killed = Instant::now();
                kill(self.root, Signal::SIGKILL).unwrap();
                self.run.end = End::Killed(number);
                self.at = 0;
            }
        }
        self.go_on(pid, None);
    }

    fn event(&mut self, pid: Pid, event: i32) {
        let is = |wanted: Event| event == wanted as i32;
        if is(Event::PTRACE_EVENT_FORK) || is(Event::PTRACE_EVENT_VFORK) {
            let child = ptrace::getevent(pid).ok().and_then(|child| i32::try_from(child).ok());
            self.others.extend(child.map(Pid::from_raw));
        }
        if is(Event::PTRACE_EVENT_EXEC) && pid == self.root {
            self.began = true;
        } else if is(Event::PTRACE_EVENT_EXEC) {
            // A program of its own: what it does is not playdead's doing.
            return self.let_go(pid);
        }
        self.go_on(pid, None);
    }

    fn go_on(&mut self, pid: Pid, signal: Option<Signal>) {
        if self.is_over() && self.others.contains(&pid) {
            return self.let_go(pid);
        }
        // Gone, where it has been killed meanwhile.
        let _ = if self.began { ptrace::syscall(pid, signal) } else { ptrace::cont(pid, signal) };
    }

    fn let_go(&mut self, pid: Pid) {
        self.others.retain(|other| *other != pid);
        let _ = ptrace::detach(pid, None);
    }
}

/// As the kernel shows it of a thread that is stopped in a call.
fn number(pid: Pid) -> i64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(-1)
}
