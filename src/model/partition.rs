//! A network that is split: between which machines nothing passes any more, one direction at a time.

use std::fmt;

/// Groups of machines that hear each other. Two machines of different groups do not, unless they have a group in
/// common; a machine in no group is connected to all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    nodes: Vec<String>,
    groups: Vec<Vec<usize>>,
    one_way: bool,
}

/// How the members of a cluster are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Split {
    /// The fewest that are a majority, and the others (at least three members).
    Majority,
    /// Two halves; of an odd number one is a majority, of an even number none.
    Halves,
    /// Each hears its neighbours in a ring: as few as make a majority with it, and no two the same (at least four
    /// members).
    Ring,
    /// Two halves, and one member that hears both (at least three members).
    Bridge,
}

impl Partition {
    /// Splits `nodes` into groups of names. `one_way`: the earlier group hears nothing of the later ones any more, but
    /// what it says still arrives.
    ///
    /// # Errors
    /// When a name is not that of a node, a group is empty, or nothing would be cut.
    pub fn new(nodes: &[String], groups: &[Vec<String>], one_way: bool) -> Result<Self, String> {
        let number = |name: &String| {
            let unknown = || format!("no node is called {name:?}: there are {}", nodes.join(", "));
            nodes.iter().position(|node| node == name).ok_or_else(unknown)
        };
        let mut numbered = Vec::new();
        for group in groups {
            let mut members = group.iter().map(number).collect::<Result<Vec<_>, _>>()?;
            members.sort_unstable();
            members.dedup();
            if members.is_empty() {
                return Err("a group of a partition is empty".into());
            }
            numbered.push(members);
        }
        let partition = Self { nodes: nodes.to_vec(), groups: numbered, one_way };
        if partition.cuts().is_empty() {
            return Err(format!("{} cuts nobody off: give at least two groups that differ", partition.shown_groups()));
        }
        Ok(partition)
    }

    /// Cuts one node off from the other members.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn isolate(nodes: &[String], members: &[String], node: &str, one_way: bool) -> Result<Self, String> {
        let others = members.iter().filter(|member| *member != node).cloned().collect();
        Self::new(nodes, &[vec![node.to_owned()], others], one_way)
    }

    /// Splits the members; the same seed splits the same members in the same way.
    ///
    /// # Errors
    /// When there are too few of them.
    pub fn split(nodes: &[String], members: &[String], how: Split, seed: u64, one_way: bool) -> Result<Self, String> {
        let mut drawn = members.to_vec();
        fastrand::Rng::with_seed(seed).shuffle(&mut drawn);
        let count = drawn.len();
        let needed = how.needed();
        if count < needed {
            return Err(format!("{} members are too few to be split so: it takes {needed}", members.len()));
        }
        let groups = match how {
            Split::Majority => halves(&drawn, count / 2 + 1),
            Split::Halves => halves(&drawn, count / 2),
            Split::Bridge => {
                let (bridge, others) = (&drawn[0], &drawn[1..]);
                let sides = halves(others, others.len() / 2);
                sides.into_iter().map(|side| [vec![bridge.clone()], side].concat()).collect()
            }
            Split::Ring => {
                // To either side half of what a majority takes besides oneself, rounded up.
                let reach = (count / 2).div_ceil(2);
                let around = |first: usize| (0..=reach).map(|step| drawn[(first + step) % count].clone()).collect();
                (0..count).map(around).collect()
            }
        };
        Self::new(nodes, &groups, one_way)
    }

    /// The names of all nodes.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// The groups, by name.
    pub fn groups(&self) -> Vec<Vec<&str>> {
        let named = |group: &Vec<usize>| group.iter().map(|node| self.nodes[*node].as_str()).collect();
        self.groups.iter().map(named).collect()
    }

    /// As typed: `etcd1 etcd2,etcd3`.
    pub fn shown_groups(&self) -> String {
        self.groups().iter().map(|group| group.join(",")).collect::<Vec<_>>().join(" ")
    }

    /// Whether what `from` sends still arrives at `to`.
    fn arrives(&self, from: usize, to: usize) -> bool {
        let of = |node: usize| self.groups.iter().enumerate().filter(move |(_, group)| group.contains(&node));
        let first = |node| of(node).next().map(|(number, _)| number);
        let (Some(sender), Some(receiver)) = (first(from), first(to)) else { return true };
        let together = of(from).any(|(_, group)| group.contains(&to));
        together || (self.one_way && sender < receiver)
    }

    /// Every pair of which the second no longer hears the first.
    pub fn cuts(&self) -> Vec<(&str, &str)> {
        let pairs = (0..self.nodes.len()).flat_map(|to| (0..self.nodes.len()).map(move |from| (from, to)));
        let cut = pairs.filter(|(from, to)| !self.arrives(*from, *to));
        cut.map(|(from, to)| (self.nodes[from].as_str(), self.nodes[to].as_str())).collect()
    }

    /// The nodes that no longer hear somebody, each with those whom it does not hear.
    pub fn deaf(&self) -> Vec<(&str, Vec<&str>)> {
        let mut deaf: Vec<(&str, Vec<&str>)> = Vec::new();
        for (from, to) in self.cuts() {
            match deaf.last_mut() {
                Some((node, unheard)) if *node == to => unheard.push(from),
                _ => deaf.push((to, vec![from])),
            }
        }
        deaf
    }
}

/// The reachability matrix: a row says whom a node still hears. Faults of others may cut more.
impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Who hears whom, if nothing else is in force:")?;
        let title = "HEARS";
        let first = self.nodes.iter().map(String::len).chain([title.len()]).max().unwrap_or(0);
        // "cut" is as wide as a cell gets.
        let widths: Vec<_> = std::iter::once(first).chain(self.nodes.iter().map(|name| name.len().max(3))).collect();
        let mut line = |cells: Vec<&str>| {
            let padded: Vec<_> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(f, "{}", padded.join("  ").trim_end())
        };
        line(std::iter::once(title).chain(self.nodes.iter().map(String::as_str)).collect())?;
        for (to, name) in self.nodes.iter().enumerate() {
            let cell = |from| match () {
                () if from == to => "-",
                () if self.arrives(from, to) => "yes",
                () => "cut",
            };
            line(std::iter::once(name.as_str()).chain((0..self.nodes.len()).map(cell)).collect())?;
        }
        Ok(())
    }
}

impl Split {
    fn needed(self) -> usize {
        match self {
            Self::Halves => 2,
            Self::Majority | Self::Bridge => 3,
            Self::Ring => 4,
        }
    }
}

fn halves(members: &[String], first: usize) -> Vec<Vec<String>> {
    let (one, other) = members.split_at(first);
    vec![one.to_vec(), other.to_vec()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn numbered(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("n{number}")).collect()
    }

    fn of(groups: &str, one_way: bool) -> Result<Partition, String> {
        let groups: Vec<_> = groups.split(' ').map(|group| names(&group.replace(',', " "))).collect();
        Partition::new(&names("a b c x"), &groups, one_way)
    }

    #[test]
    fn groups_are_cut_from_each_other_and_who_is_in_none_or_in_both_is_not() {
        let split = of("a b,c", false).unwrap();
        assert_eq!(split.cuts(), [("b", "a"), ("c", "a"), ("a", "b"), ("a", "c")]);
        assert_eq!(of("a,c b,c", false).unwrap().cuts(), [("b", "a"), ("a", "b")]);
        assert_eq!(split.deaf(), [("a", vec!["b", "c"]), ("b", vec!["a"]), ("c", vec!["a"])]);
    }

    #[test]
    fn one_way_the_earlier_group_is_deaf_and_is_still_heard() {
        let split = of("a b,c", true).unwrap();
        assert_eq!(split.cuts(), [("b", "a"), ("c", "a")]);
        let shown = "Who hears whom, if nothing else is in force:\nHEARS  a    b    c    x\na      -    cut  cut  yes\nb      yes  -    yes  yes\n\
                     c      yes  yes  -    yes\nx      yes  yes  yes  -\n";
        assert_eq!(split.to_string(), shown);
    }

    #[test]
    fn what_would_cut_nobody_off_is_refused() {
        for groups in ["a", "a,b a,b", "a a"] {
            assert!(of(groups, false).unwrap_err().contains("cuts nobody off"), "{groups}");
        }
        assert!(of("a z", false).unwrap_err().contains("\"z\": there are a, b, c, x"));
        let three = numbered(3);
        assert!(Partition::split(&three, &three, Split::Ring, 1, false).unwrap_err().contains("it takes 4"));
    }

    proptest! {
        #[test]
        fn every_split_keeps_its_promise(count in 2usize..10, seed: u64) {
            let nodes = numbered(count);
            let majority = count / 2 + 1;
            for how in [Split::Majority, Split::Halves, Split::Ring, Split::Bridge] {
                let Ok(split) = Partition::split(&nodes, &nodes, how, seed, false) else {
                    prop_assert!(count < how.needed());
                    continue;
                };
                let again = Partition::split(&nodes, &nodes, how, seed, false);
                prop_assert_eq!(again.as_ref(), Ok(&split));
                let heard = |to| (0..count).filter(|from| split.arrives(*from, to)).collect::<Vec<_>>();
                let sizes: Vec<_> = (0..count).map(|node| heard(node).len()).collect();
                match how {
                    Split::Majority => {
                        prop_assert_eq!(sizes.iter().filter(|size| **size == majority).count(), majority);
                        prop_assert_eq!(sizes.iter().filter(|size| **size == count - majority).count(), count - majority);
                    }
                    Split::Halves => prop_assert!(sizes.iter().all(|size| *size == count / 2 || *size == count.div_ceil(2))),
                    Split::Bridge => prop_assert_eq!(sizes.iter().filter(|size| **size == count).count(), 1),
                    Split::Ring => {
                        prop_assert!(sizes.iter().all(|size| *size >= majority && *size <= majority + 1), "{:?}", sizes);
                        let mut views: Vec<_> = (0..count).map(heard).collect();
                        views.sort();
                        views.dedup();
                        prop_assert!(views.len() == count, "{:?}", views);
                    }
                }
            }
        }
    }
}
