//! Texts of others as they may stand in a document or on a terminal.

/// With what XML 1.0 has no place for (section 2.2: control characters and two more), and what would make a terminal do
/// something, replaced by U+FFFD. Ends of lines and tabs stay.
pub fn plain(text: &str) -> String {
    let is_plain = |c: char| matches!(c, '\n' | '\t') || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'));
    text.chars().map(|c| if is_plain(c) { c } else { '\u{fffd}' }).collect()
}

/// As long as a word, and a line, of an error may be: more is cut out of its middle.
const LONGEST_WORD: usize = 200;
const LONGEST_LINE: usize = 2000;

/// The same as one line that a person can read, whatever somebody typed 10 000 letters of.
pub fn line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().map(|word| cut(word, LONGEST_WORD)).collect();
    plain(&cut(&words.join(" "), LONGEST_LINE))
}

/// Without what is too much in the middle.
fn cut(text: &str, most: usize) -> String {
    let len = text.chars().count();
    if len <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most * 3 / 4).collect();
    let tail: String = text.chars().skip(len - most / 4).collect();
    format!("{head}\u{2026}{tail}")
}

/// A JSON document with the control characters that JSON itself lets stand (DEL and the C1 set, which a terminal takes for
/// the beginning of a sequence) in JSON's own notation: they can only be inside of strings.
pub fn json(document: &str) -> String {
    let shown = |c: char| if c.is_control() { format!("\\u{:04x}", u32::from(c)) } else { c.into() };
    if document.contains(char::is_control) { document.chars().map(shown).collect() } else { document.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_however_long_and_wild_a_name_is() {
        assert_eq!(line("no \"a\nb\t\u{1b}c\": do  this"), "no \"a b \u{fffd}c\": do this");
        let long = line(&format!("{} is wrong: do this", "x".repeat(10_000)));
        assert!(long.len() < 300 && long.ends_with("x is wrong: do this"), "{long}");
        let long = line(&format!("no {}: do this", "x ".repeat(10_000)));
        assert!(long.len() < 2100 && long.ends_with("x : do this"), "{long}");
    }

    #[test]
    fn a_document_stays_what_it_was_for_a_reader_of_json() {
        let document = serde_json::json!({ "a": "\u{1b}[31m\u{7f}\u{9b}31m\u{e9}\n" });
        let text = json(&document.to_string());
        assert!(!text.contains(char::is_control), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), document);
    }

    #[test]
    fn only_what_is_forbidden_is_replaced() {
        assert_eq!(
            plain("a\u{1b}[31m\0\u{7}\u{9b}\u{ffff}é\t\n"),
            "a\u{fffd}[31m\u{fffd}\u{fffd}\u{fffd}\u{fffd}é\t\n"
        );
    }
}
