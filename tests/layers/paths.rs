//! The paths that Rust sources write: in `use` trees and elsewhere, but not in comments and quotes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

pub(crate) struct Source {
    /// From the root of the repository.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A path as it was written, from `crate` on where it began at `self` or `super`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) line: usize,
    pub(crate) words: Vec<String>,
}

impl Found {
    pub(crate) fn last(&self) -> &str {
        self.words.last().map_or("", String::as_str)
    }

    /// Whether this is `other`, lies in it, or imports everything around it.
    pub(crate) fn reaches(&self, other: &str) -> bool {
        let other: Vec<_> = other.split("::").collect();
        match self.words.split_last() {
            Some((last, rest)) if last == "*" => rest.iter().zip(&other).all(|(a, b)| a == b),
            _ => self.words.len() >= other.len() && self.words.iter().zip(&other).all(|(a, b)| a == b),
        }
    }

    pub(crate) fn shown(&self, source: &Source, why: &str) -> String {
        format!("{}:{}: {}: {why}", source.name, self.line, self.words.join("::"))
    }
}

/// All of `src/`, in the order of their names.
pub(crate) fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.push(Source { name, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

impl Source {
    /// The folder of `src/`, or the file that stands for one; none for the roots of the two crates.
    pub(crate) fn layer(&self) -> Option<&str> {
        let name = self.name.strip_prefix("src/")?.split('/').next()?;
        let name = name.strip_suffix(".rs").unwrap_or(name);
        (!["lib", "main"].contains(&name)).then_some(name)
    }

    /// The module that this file is, from `crate` on.
    fn module(&self) -> Vec<String> {
        let name = self.name.trim_start_matches("src/").trim_end_matches(".rs");
        let words = name.split('/').filter(|word| !["mod", "lib", "main"].contains(word));
        std::iter::once("crate").chain(words).map(str::to_owned).collect()
    }

    /// Every path and lone word of the code, `use` trees taken apart.
    pub(crate) fn paths(&self) -> BTreeSet<Found> {
        let tokens = tokens(&blank(&self.text, true));
        let mut found = BTreeSet::new();
        let mut at = 0;
        while at < tokens.len() {
            tree(&tokens, &mut at, &[], &mut found);
        }
        let module = self.module();
        found.into_iter().map(|path| Found { words: resolved(path.words, &module), ..path }).collect()
    }
}

/// One path, or the tree of a `use`, from the token `at`, which moves behind it.
fn tree(tokens: &[(usize, String)], at: &mut usize, stem: &[String], found: &mut BTreeSet<Found>) {
    let token = |at: usize| tokens.get(at).map_or("", |(_, token)| token.as_str());
    let (start, line) = (*at, tokens[*at].0);
    let mut words = stem.to_vec();
    while is_word(token(*at)) || (token(*at) == "*" && !words.is_empty()) {
        words.push(token(*at).to_owned());
        *at += 1;
        if token(*at) != "::" {
            break;
        }
        *at += 1;
        if token(*at) == "{" {
            *at += 1;
            while !["}", ""].contains(&token(*at)) {
                tree(tokens, at, &words, found);
            }
            *at += 1;
            return;
        }
    }
    if *at == start {
        *at += 1;
        return;
    }
    // In a tree, `self` is what the tree stands on.
    if words.len() > 1 && words.last().is_some_and(|last| last == "self") {
        words.pop();
    }
    found.insert(Found { line, words });
    // The other name of an import is no path.
    if token(*at) == "as" && !stem.is_empty() {
        *at += 2;
    }
}

/// `self` and `super` as the file's module has them. In an inline module they may come out one too high, which
/// is still inside the layer or at the root.
fn resolved(words: Vec<String>, module: &[String]) -> Vec<String> {
    if !matches!(words[0].as_str(), "self" | "super") || words.len() == 1 {
        return words;
    }
    let up = words.iter().filter(|word| *word == "super").count();
    let stem = &module[..module.len().saturating_sub(up).max(1)];
    stem.iter().cloned().chain(words.into_iter().skip_while(|word| word == "super" || word == "self")).collect()
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words, `::` and single other characters, each with its line.
fn tokens(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len());
            let length = if word > 0 {
                word
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            found.push((number + 1, rest[..length].to_owned()));
            rest = rest[length..].trim_start();
        }
    }
    found
}

/// The text with spaces for comments, and for what stands in quotes if `quoted`; lines stay where they are.
pub(crate) fn blank(text: &str, quoted: bool) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (length, hidden) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), true)
        } else if rest.starts_with("/*") {
            (block_comment(rest), true)
        } else if let Some(length) = quotation(rest) {
            (length, quoted)
        } else {
            // A whole word at once, so that the r of `for"` or `br"` is not taken for the start of a raw string.
            let word = rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len());
            (word.max(first.len_utf8()), false)
        };
        let keep = |c: char| if hidden && c != '\n' { ' ' } else { c };
        out.extend(rest[..length].chars().map(keep));
        rest = &rest[length..];
    }
    out
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += 1;
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of the string or character that the text begins with, its prefix included.
fn quotation(text: &str) -> Option<usize> {
    let bare = text.trim_start_matches(['b', 'c']);
    let prefix = text.len() - bare.len();
    if prefix > 1 {
        return None;
    }
    if let Some(raw) = bare.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let start = hashes + 1;
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            return Some(prefix + 1 + start + raw[start..].find(&end)? + end.len());
        }
        return None;
    }
    let quote = bare.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
    let mut inside = bare[1..].char_indices();
    if quote == '\'' {
        // A lifetime has no second quote after one character.
        let (_, first) = inside.next()?;
        if first != '\\' {
            let (at, next) = inside.next()?;
            return (next == '\'').then_some(prefix + at + 2);
        }
        inside.next()?;
    }
    while let Some((at, next)) = inside.next() {
        if next == quote {
            return Some(prefix + at + 2);
        }
        if next == '\\' {
            inside.next()?;
        }
    }
    None
}

#[test]
fn paths_are_found_in_every_way_of_writing_them() {
    let text = r##"
        use crate::{kernel::{self, nft}, model::Kind as K};
        use super::super::rules::*;
        // use crate::comment; /* "
        /* nested /* use crate::block; */ */ fn f<'a>(c: char) -> &'a str { let _ = ('"', b'\'', '\u{1f}'); "crate::text" }
        const R: &str = r#"crate::raw " "#; fn g() { std::fs::read("x"); a.now() }
        fn unsafe_name() { unsafe { x() } }
    "##;
    let source = Source { name: "src/probe/tcp.rs".to_owned(), text: text.to_owned() };
    let found: Vec<_> = source.paths().iter().map(|path| format!("{} {}", path.line, path.words.join("::"))).collect();
    for expected in [
        "2 crate::kernel",
        "2 crate::kernel::nft",
        "2 crate::model::Kind",
        "3 crate::rules::*",
        "6 std::fs::read",
        "7 unsafe",
    ] {
        assert!(found.iter().any(|path| path == expected), "{expected} is not in {found:?}");
    }
    let wrong = found.iter().filter(|path| ["comment", "block", "text", "raw"].iter().any(|word| path.contains(word)));
    assert_eq!(wrong.count(), 0, "{found:?}");
}
