//! The machine and the rights of this process.

use anyhow::Result;

use super::{Finding, State};
use crate::kernel::machine::{self, Capability, NamesMount, Rights};

/// The egress hook and matches behind the transport header came with it.
const NEEDED: (u32, u32) = (5, 16);

/// Rights, what does not work without them, and how bad that is.
const RIGHTS: [(Capability, &str, State, &str); 4] = [
    (Capability::NetAdmin, "CAP_NET_ADMIN", State::Missing, "no fault can be made, healed or seen"),
    (Capability::NetRaw, "CAP_NET_RAW", State::Missing, "dead-process cannot end open connections; probe may not ping"),
    (
        Capability::SysAdmin,
        "CAP_SYS_ADMIN",
        State::Limited,
        "only the namespace that playdead is called in: no --netns, --pid, --container, --node, lab",
    ),
    (
        Capability::SysPtrace,
        "CAP_SYS_PTRACE",
        State::Limited,
        "namespaces of other users' processes are not seen: heal and status pass them by",
    ),
];

pub(super) fn look() -> Result<Vec<Finding>> {
    let rights = Rights::read()?;
    let mut findings = vec![kernel(&machine::release()?)];
    findings.extend(RIGHTS.map(|(capability, name, state, costs)| right(rights, capability, name, state, costs)));
    findings.push(user_namespace(rights));
    findings.push(unprivileged_namespaces());
    findings.push(names(machine::names_mount()?));
    findings.push(etcd());
    Ok(findings)
}

/// The facilities are looked at one by one, so an old kernel that has them all is merely one that nobody tried.
fn kernel(release: &str) -> Finding {
    if version(release) >= NEEDED {
        return Finding::ok("kernel", release);
    }
    let (major, minor) = NEEDED;
    Finding::new("kernel", State::Limited, release)
        .costs(format!("older than {major}.{minor}: the lines below tell what it lacks"))
        .mend("boot a newer kernel")
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn right(rights: Rights, capability: Capability, name: &str, state: State, costs: &str) -> Finding {
    if rights.has(capability) {
        return Finding::ok(name, "here");
    }
    // Root without rights is root of a container.
    let mend = if rights.user == 0 {
        "start the container with --privileged"
    } else {
        "sudo playdead ..., or in a namespace of your own: unshare -rnm"
    };
    Finding::new(name, state, format!("not for user {}", rights.user)).costs(costs).mend(mend)
}

fn user_namespace(rights: Rights) -> Finding {
    if rights.first_user_namespace {
        return Finding::ok("user namespace", "the first");
    }
    Finding::new("user namespace", State::Limited, "not the first")
        .costs("rights end with the namespaces that belong to it; transactions are limited by net.core.wmem_max")
        .mend("call playdead outside it, by sudo")
}

/// Whether `unshare -rn` gives an ordinary user rights.
fn unprivileged_namespaces() -> Finding {
    let what = "unshare -rn";
    let blocks = [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("user/max_user_namespaces", "0", "10000"),
    ];
    let blocked =
        blocks.iter().find(|(key, blocking, _)| machine::setting(key).is_some_and(|value| value == *blocking));
    let Some((key, value, wanted)) = blocked else { return Finding::ok(what, "may give every user a network") };
    let key = key.replace('/', ".");
    Finding::new(what, State::Limited, format!("{key} is {value}"))
        .costs("gives an ordinary user no rights: playdead needs sudo")
        .mend(format!("sudo sysctl {key}={wanted}"))
}

fn names(mount: NamesMount) -> Finding {
    let what = "/run/netns";
    match mount {
        NamesMount::Absent => Finding::ok(what, "not there: no namespace has a name"),
        NamesMount::Shared => Finding::ok(what, "shared"),
        NamesMount::Private => Finding::new(what, State::Limited, "not shared with other mount namespaces")
            .costs("names that go here stay elsewhere, and the other way round")
            .mend("mount --bind /run/netns /run/netns && mount --make-shared /run/netns"),
    }
}

fn etcd() -> Finding {
    match machine::program("etcd") {
        Some(path) => Finding::ok("etcd", path.display().to_string()),
        None => Finding::new("etcd", State::Limited, "not on the PATH")
            .costs("no lab")
            .mend("sudo apt install --no-install-recommends etcd-server"),
    }
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_release_is_compared_by_its_first_two_numbers() {
        assert_eq!(version("6.1.0-37-amd64"), (6, 1));
        assert_eq!(version("5.16-rc3"), (5, 16));
        assert_eq!(version("5.4.0"), (5, 4));
        assert_eq!(version("strange"), (0, 0));
        assert!(version("6.1.0") > (5, 16) && version("5.15.9") < (5, 16));
    }
}
