//! Texts of others as they may stand in a document or on a terminal.

/// With what XML 1.0 has no place for (section 2.2: control characters and two more), and what would make a terminal do
/// something, replaced by U+FFFD. Ends of lines and tabs stay.
pub fn plain(text: &str) -> String {
    let is_plain = |c: char| matches!(c, '\n' | '\t') || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'));
    text.chars().map(|c| if is_plain(c) { c } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_forbidden_is_replaced() {
        assert_eq!(
            plain("a\u{1b}[31m\0\u{7}\u{9b}\u{ffff}é\t\n"),
            "a\u{fffd}[31m\u{fffd}\u{fffd}\u{fffd}\u{fffd}é\t\n"
        );
    }
}
