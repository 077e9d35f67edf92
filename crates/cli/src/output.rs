//! All that is printed goes through here. A reader that has gone away is no error.
use std::io::{IsTerminal, Write};

/// Whether colours and moving bars are welcome: a terminal, and `NO_COLOR` is not set.
pub fn fancy() -> bool {
    std::io::stderr().is_terminal() && no_color().is_none()
}

fn no_color() -> Option<()> {
    std::env::var_os("NO_COLOR").filter(|v| !v.is_empty()).map(|_| ())
}

/// Prints to standard output as it is.
pub fn out(text: &str) {
    out_bytes(text.as_bytes());
}

/// Prints bytes to standard output.
pub fn out_bytes(bytes: &[u8]) {
    let mut to = std::io::stdout().lock();
    let _ = to.write_all(bytes).and_then(|()| to.flush());
}

/// Prints a line to standard output.
pub fn line(text: &str) {
    out(&format!("{text}\n"));
}

/// Prints a line to standard error.
pub fn note(text: &str) {
    let mut to = std::io::stderr().lock();
    let _ = writeln!(to, "{text}");
}

/// Prints an error.
pub fn error(text: &str) {
    if fancy() {
        note(&format!("\x1b[1;31merror:\x1b[0m {text}"));
    } else {
        note(&format!("error: {text}"));
    }
}
