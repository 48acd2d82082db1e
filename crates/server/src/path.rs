//! Parts of paths.

/// A part of a path as it was meant: `%3A` is a colon. What is no escape stays as it is.
pub(crate) fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digit = |offset: usize| bytes.get(at + offset).and_then(|&c| (c as char).to_digit(16));
        match (bytes[at], digit(1), digit(2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(percent_decoded("smollm2%3A135m"), "smollm2:135m");
        assert_eq!(percent_decoded("a%2fb%"), "a/b%");
        assert_eq!(percent_decoded("%zz%4%+1"), "%zz%4%+1");
        assert_eq!(percent_decoded("%c3%a9%ff"), "é\u{fffd}");
    }
}
