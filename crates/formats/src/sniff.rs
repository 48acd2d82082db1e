//! Guesses what a foreign file is from its first bytes, to say more than "bad magic".

/// A short phrase for what the file looks like, with its first bytes.
pub(crate) fn describe(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(64)];
    let text = String::from_utf8_lossy(head).trim_start().to_ascii_lowercase();
    let guess = if head.is_empty() {
        return "is empty; download it again".to_string();
    } else if head.starts_with(b"GGUF") {
        "looks like a GGUF file"
    } else if [b"GGML", b"ggml", b"lmgg", b"ggjt", b"tjgg", b"ggmf", b"fmgg", b"ggla", b"algg"]
        .iter()
        .any(|magic| head.starts_with(*magic))
    {
        "looks like a ggml file from before GGUF; convert the original model again"
    } else if head.starts_with(b"PK\x03\x04") {
        "looks like a zip archive (a PyTorch checkpoint, a wheel or a download to unpack)"
    } else if head.starts_with(&[0x1f, 0x8b]) || head.starts_with(b"\xfd7zXZ\0") {
        "looks like a compressed archive; unpack it first"
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        "looks like a zstd archive; unpack it first"
    } else if head.starts_with(b"\x93NUMPY") {
        "looks like a NumPy array"
    } else if text.starts_with("<!doctype")
        || text.starts_with("<html")
        || text.starts_with("<?xml")
    {
        "looks like an HTML page (a failed download saved as the file); download it again"
    } else if text.starts_with("version https://git-lfs") {
        "is a Git LFS pointer, not the file itself; fetch it with 'git lfs pull'"
    } else if head.len() > 9 && head[8] == b'{' && head[4..8] == [0; 4] {
        "looks like a safetensors file"
    } else if head[0] == b'{' || head[0] == b'[' {
        "looks like JSON text"
    } else if head.starts_with(&[0x80]) && head.len() > 1 && head[1] <= 5 {
        "looks like a Python pickle (an old PyTorch checkpoint)"
    } else if head.iter().all(|&byte| byte == 0) {
        "starts with zeros (an unfinished download); download it again"
    } else {
        "is of no format this program knows"
    };
    let first = &head[..head.len().min(8)];
    format!("{guess}; the first bytes are \"{}\"", first.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::describe;

    #[test]
    fn common_mistakes_are_named() {
        let cases: [(&[u8], &str); 9] = [
            (b"", "empty"),
            (b"PK\x03\x04....", "zip"),
            (b"<!DOCTYPE html><html>", "HTML"),
            (b"\n  <html lang=en>", "HTML"),
            (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
            (b"\x40\0\0\0\0\0\0\0{\"a\":", "safetensors"),
            (b"{\"a\": 1}", "JSON"),
            (b"\0\0\0\0\0\0\0\0\0\0\0\0", "zeros"),
            (b"tjgg\x01", "before GGUF"),
        ];
        for (bytes, expected) in cases {
            assert!(describe(bytes).contains(expected), "{bytes:?}: {}", describe(bytes));
        }
        assert!(describe(b"\x07abc").ends_with("\"\\x07abc\""));
    }
}
