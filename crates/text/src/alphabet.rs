//! The byte-level alphabet of GPT-2: every byte is written as one printable
//! character, so that a vocabulary of byte strings can be kept as text.
//! Printable Latin-1 maps to itself, the other 68 bytes are U+0100 onwards
//! in order.

/// The character that spells a byte.
pub(crate) fn char_of(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0..=0x20 => shifted(u32::from(byte)),
        0x7f..=0xa0 => shifted(u32::from(byte) - 0x7f + 33),
        0xad => shifted(67),
    }
}

fn shifted(place: u32) -> char {
    char::from_u32(0x100 + place).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that a character spells, if it is of the alphabet.
pub(crate) fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Appends the bytes of a spelling, or the character's own where a character is not of the alphabet.
pub(crate) fn decode(spelling: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for character in spelling.chars() {
        match byte_of(character) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(spelling.as_bytes());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let characters: std::collections::HashSet<char> = (0..=255).map(char_of).collect();
        assert_eq!(characters.len(), 256);
        assert!((0..=255).all(|byte| byte_of(char_of(byte)) == Some(byte)));
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(0xad), 'Ń');
    }

    #[test]
    fn a_spelling_outside_the_alphabet_stands_for_itself() {
        let mut out = Vec::new();
        decode("Ġé", &mut out);
        decode("▁a", &mut out);
        assert_eq!(out, [b" \xe9".as_slice(), "▁a".as_bytes()].concat());
    }
}
