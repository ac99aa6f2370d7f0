//! Paths of namespaces that lead elsewhere.

use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Scratch, assert_refused, done, in_time};
use crate::net::cli::playdead;
use crate::net::{At, Segment};

const LIMIT: Duration = Duration::from_secs(5);

#[test]
fn a_path_that_is_no_network_namespace_is_refused_at_once() {
    let segment = Segment::new();
    let scratch = Scratch::new(&segment);
    let socket = scratch.path("socket");
    let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    let of_ended = format!("/proc/{}/ns/net", ended.id());
    symlink(&of_ended, scratch.path("ended")).unwrap();
    symlink(scratch.path("loop"), scratch.path("loop")).unwrap();
    let zombie = (0..500).find(|_| {
        std::thread::sleep(Duration::from_millis(2));
        std::fs::read_link(&of_ended).is_err()
    });
    assert!(zombie.is_some(), "true does not end");
    let users = scratch.file("users", "somebody's");
    done("chown", &["nobody:", &users]);
    done("chmod", &["600", &users]);
    done("mknod", &[&scratch.path("device"), "c", "1", "12"]);
    let mut paths = vec![scratch.fifo("fifo"), socket, scratch.path("."), scratch.path("device"), users];
    paths.extend(["ended", "loop"].map(|name| scratch.path(name)));
    paths.extend(
        ["/dev/zero", "/dev/random", "/dev/tty", "/proc/kmsg", "/proc/self/ns/mnt", "/proc/self/ns/user"]
            .map(Into::into),
    );
    for path in &paths {
        for words in [["--netns", path, "status"], ["--netns", path, "heal"]] {
            let said = assert_refused(&in_time(playdead().args(words), LIMIT), &[1], path);
            assert!(said.contains(path), "{said}");
        }
        let nodes = scratch.file("nodes.toml", format!("[nodes.a]\nnetns = \"{path}\"\naddresses = [\"10.0.0.1\"]\n"));
        assert_refused(&in_time(playdead().args(["--nodes", &nodes, "--node", "a", "status"]), LIMIT), &[1], path);
    }
    // A path that is one keeps being one.
    let output =
        in_time(playdead().args(["--netns", &format!("/run/netns/{}", segment.name(At::Client)), "status"]), LIMIT);
    assert!(output.status.success(), "{output:?}");
    ended.wait().unwrap();
}

#[test]
fn a_process_that_ends_in_between_is_there_or_is_not() {
    let segment = Segment::new();
    let scratch = Scratch::new(&segment);
    for round in 0..40 {
        let mut process = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let link = scratch.path(&format!("link{round}"));
        symlink(format!("/proc/{}/ns/net", process.id()), &link).unwrap();
        let mut command = playdead();
        command.args(["--netns", &link, "status"]).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(250 * round));
        process.kill().unwrap();
        process.wait().unwrap();
        let output = child.wait_with_output().unwrap();
        if !output.status.success() {
            assert!(assert_refused(&output, &[1], "ended").contains(&link), "{output:?}");
        }
    }
}

/// In a mount namespace of its own: other tests look at all names.
#[test]
fn what_lies_among_the_names_of_namespaces_makes_nobody_wait() {
    let segment = Segment::new();
    let scratch = Scratch::new(&segment);
    let prepare = "mount --make-rprivate / && mount -t tmpfs none /run/netns && cd /run/netns && mkfifo fifo && \
                   : >plain && mknod device c 1 12 && ln -s /proc/1/ns/mnt other && ln -s loop loop && mkdir \
                   \"$(printf 'a\\033[31m\\nb')\" &&";
    for (words, code) in [
        ("status", 0),
        ("--netns fifo status", 1),
        ("--netns plain status", 1),
        ("--netns device status", 1),
        ("--netns other status", 1),
        ("--netns loop status", 1),
    ] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "bash", "-c", &format!("{prepare} exec \"$0\" {words}")]);
        let output = in_time(command.arg(playdead().get_program()).current_dir(&scratch.0), LIMIT);
        assert_eq!(output.status.code(), Some(code), "{words}: {output:?}");
        super::assert_plain(&output.stdout, words);
        super::assert_plain(&output.stderr, words);
    }
}
