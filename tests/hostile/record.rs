//! Where a record is made: somebody else may write there, too.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{Scratch, assert_plain, assert_refused, in_time};
use crate::net::cli::playdead;
use crate::net::{At, Segment};

const LIMIT: Duration = Duration::from_secs(20);

/// A scenario that runs a command after that many seconds.
fn scenario(segment: &Segment, scratch: &Scratch, wait: &str) -> String {
    let nodes = format!("[nodes.a]\nnetns = \"{}\"\n", segment.name(At::Client));
    let steps =
        format!("[[steps]]\nsleep = \"{wait}\"\n[[steps]]\nrun.command = \"echo said; printf '\\\\033[31m'\"\n");
    scratch.file("scenario.toml", format!("about = \"a\\u001b[31mb\\u009bc\"\n{nodes}{steps}"))
}

fn wait_for(path: &Path) {
    let until = Instant::now() + LIMIT;
    while !path.exists() {
        assert!(Instant::now() < until, "{} is not made", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_link_that_somebody_lays_into_a_record_is_followed() {
    let segment = Segment::new();
    for planted in [".junit.xml", ".summary.md", ".timeline.svg", "junit.xml", "output"] {
        let scratch = Scratch::new(&segment);
        let file = scenario(&segment, &scratch, "1500ms");
        let (out, victim) = (scratch.0.join("out"), scratch.0.join("victim"));
        let victims = scratch.0.join("victims");
        std::fs::create_dir(&victims).unwrap();
        std::fs::write(&victim, "mine").unwrap();
        // As in /tmp: a directory of somebody else's that was there before.
        std::fs::create_dir(&out).unwrap();
        std::fs::set_permissions(&out, std::fs::Permissions::from_mode(0o777)).unwrap();
        let words = ["run", &file, "--out", out.to_str().unwrap(), "--seed", "1"];
        let child = playdead().args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for(&out.join("timeline.svg"));
        let target = if planted == "output" { &victims } else { &victim };
        let link = out.join(planted);
        // Until it is there: the record may just put a file of that name in its place.
        while symlink(target, &link).is_err() {
            let _ = std::fs::remove_file(&link);
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "mine", "{planted}: {output:?}");
        assert_eq!(victims.read_dir().unwrap().count(), 0, "{planted}: {output:?}");
        let whole = planted != "output";
        assert_eq!(output.status.success(), whole, "{planted}: {output:?}");
    }
}

#[test]
fn the_files_of_a_record_are_plain_and_no_wider_than_the_umask() {
    let segment = Segment::new();
    let scratch = Scratch::new(&segment);
    let (file, out) = (scenario(&segment, &scratch, "1ms"), scratch.path("out"));
    let program = playdead().get_program().to_str().unwrap().to_owned();
    let script = format!("umask 027; exec {program} run {file} --out {out} --seed 1");
    let output = in_time(std::process::Command::new("sh").args(["-c", &script]), LIMIT);
    assert!(output.status.success(), "{output:?}");
    let mut files = 0;
    let mut left = vec![Path::new(&out).to_owned()];
    while let Some(path) = left.pop() {
        let meta = path.symlink_metadata().unwrap();
        assert_eq!((meta.mode() & 0o027, meta.uid()), (0, 0), "{}", path.display());
        if meta.is_dir() {
            left.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        // What a command has written is kept as it is.
        let content = std::fs::read(&path).unwrap();
        if !path.starts_with(Path::new(&out).join("output")) {
            assert_plain(&content, &path.display().to_string());
        }
        files += 1;
    }
    assert!(files >= 5, "{files} files");
    let again = in_time(playdead().args(["run", &file, "--seed", "1", "--out", &out]), LIMIT);
    assert!(assert_refused(&again, &[1], "again").contains("not empty"));
    let into = in_time(playdead().args(["run", &file, "--seed", "1", "--out", "/dev/null"]), LIMIT);
    assert_refused(&into, &[1], "/dev/null");
}
