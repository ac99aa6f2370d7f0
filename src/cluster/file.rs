//! TOML files, with errors that say where: file, line and field.

use std::path::Path;

use anyhow::{Result, anyhow};
use serde::de::DeserializeOwned;

use crate::kernel::file::read_text;

/// Reads a TOML file.
///
/// # Errors
/// One line: the file, and where it is the content that is wrong, the line and the field.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = read_text(path)?;
    parse(&text).map_err(|wrong| anyhow!("{}:{wrong}", path.display()))
}

/// The error is `LINE: FIELD: what is wrong`.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let whole = toml::Deserializer::parse(text).map_err(|error| at(text, None, &error))?;
    serde_path_to_error::deserialize(whole).map_err(|error| {
        // `Spanned` looks like a struct to serde.
        let field = error.path().to_string().replace(".$__serde_spanned_private_value", "");
        at(text, Some(field.as_str()).filter(|field| *field != "."), error.inner())
    })
}

fn at(text: &str, field: Option<&str>, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let field = field.map(|field| format!("{field}: ")).unwrap_or_default();
    format!("{line}: {field}{}", error.message().replace('\n', "; "))
}
