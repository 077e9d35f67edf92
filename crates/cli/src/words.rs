//! A line of the shell as words of bytes.

/// Splits a line at spaces. A word in double quotes may hold spaces; `\xNN`, `\n`, `\r`, `\t`, `\\`
/// and `\"` stand for bytes, with and without quotes. What follows `#` at the start of a word is a
/// comment.
///
/// # Errors
/// Says what is malformed, and where.
pub fn split(line: &str) -> Result<Vec<Vec<u8>>, String> {
    let bytes = line.as_bytes();
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        match bytes.get(at) {
            None | Some(b'#') => return Ok(words),
            Some(_) => {}
        }
        let quoted = bytes[at] == b'"';
        let start = at;
        at += usize::from(quoted);
        let mut word = Vec::new();
        loop {
            match bytes.get(at) {
                None if quoted => {
                    return Err(format!("the quote at column {} is not closed", start + 1));
                }
                None => break,
                Some(b'"') if quoted => {
                    at += 1;
                    if bytes.get(at).is_some_and(|b| !b.is_ascii_whitespace()) {
                        return Err(format!("no space after the quote at column {at}"));
                    }
                    break;
                }
                Some(b) if !quoted && b.is_ascii_whitespace() => break,
                Some(b'\\') => {
                    let (byte, used) = escaped(&bytes[at..]).ok_or_else(|| {
                        format!("column {}: after a backslash comes xNN, n, r, t, \\ or \"", at + 1)
                    })?;
                    word.push(byte);
                    at += used;
                }
                Some(b) => {
                    word.push(*b);
                    at += 1;
                }
            }
        }
        words.push(word);
    }
}

fn escaped(bytes: &[u8]) -> Option<(u8, usize)> {
    let simple = |b| Some((b, 2));
    match bytes.get(1)? {
        b'n' => simple(b'\n'),
        b'r' => simple(b'\r'),
        b't' => simple(b'\t'),
        b'\\' => simple(b'\\'),
        b'"' => simple(b'"'),
        b'x' => {
            let digits = bytes.get(2..4)?;
            if !digits.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            let text = std::str::from_utf8(digits).ok()?;
            Some((u8::from_str_radix(text, 16).ok()?, 4))
        }
        _ => None,
    }
}

/// Bytes as a word that [`split`] reads back: plain where possible, in quotes otherwise.
pub fn shown(bytes: &[u8]) -> String {
    let text = std::str::from_utf8(bytes).ok();
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"\"\\#".contains(c);
    match text {
        Some(t) if !t.is_empty() && t.chars().all(plain) => t.to_owned(),
        _ => {
            let mut out = String::from("\"");
            for b in bytes {
                match b {
                    b'"' => out += "\\\"",
                    b'\\' => out += "\\\\",
                    b' '..=b'~' => out.push(char::from(*b)),
                    _ => out += &format!("\\x{b:02x}"),
                }
            }
            out.push('"');
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_quotes_and_escapes() {
        let words = |l: &str| split(l).unwrap();
        assert_eq!(
            words("  put a\t\"b c\" # x"),
            [b"put".to_vec(), b"a".to_vec(), b"b c".to_vec()]
        );
        assert_eq!(words(r#"\x00\n "\x22\\\"" """#), [vec![0, b'\n'], b"\"\\\"".to_vec(), vec![]]);
        assert!(words("# all").is_empty() && words("").is_empty());
        assert_eq!(words("ä"), ["ä".as_bytes().to_vec()]);
        for bad in ["\"a", "\"a\"b", "\\q", "\\x1", "\\xzz", "\\"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for bytes in [
            &b"plain"[..],
            b"",
            b"a b",
            b"#",
            b"\"\\",
            &[0, 255, 10],
            "ü ö".as_bytes(),
            "ü".as_bytes(),
        ] {
            assert_eq!(split(&shown(bytes)).unwrap(), [bytes.to_vec()], "{bytes:?}");
        }
    }
}
