//! Durations as people write them.

use std::time::Duration;

/// 500ms, 30s, 1m30s; a bare 0 is not one.
///
/// # Errors
/// One line that says how to write it.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = pause(text)?;
    if duration.as_millis() == 0 {
        return Err(format!("{text:?} is not a duration above zero: write 500ms, 30s, 2m or 1h30m"));
    }
    Ok(duration)
}

/// The same, but 0s is one too.
///
/// # Errors
/// As [`duration`].
pub fn pause(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write 500ms, 30s, 2m or 1h30m");
    // A day is 24 hours here: this is about elapsed time, not about calendars.
    let span: jiff::Span = text.parse().map_err(|_| wrong())?;
    let signed = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    let duration = Duration::try_from(signed).map_err(|_| wrong())?;
    if duration > Duration::from_secs(366 * 86_400) {
        return Err(format!("{text:?} is more than a year"));
    }
    Ok(duration)
}
