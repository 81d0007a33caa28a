//! Rules for prose: the length of lines in comments and documents, and SAFETY comments without an
//! argument.

use std::{fs, path::Path};

/// The last permitted column of a comment or of a line in a document.
const COLUMNS: usize = 100;

/// Texts that are no SAFETY argument: a reference to another argument, or a requirement without the
/// reason why it is met.
const EMPTY_ARGUMENTS: [&str; 12] = [
    "as above",
    "as before",
    "by the caller",
    "c's promise",
    "likewise",
    "same as above",
    "the caller's promise",
    "the caller's promises",
    "the pointer is valid",
    "the same",
    "the same promise",
    "valid",
];

/// Lists the faults of the files.
pub(super) fn check(root: &Path, files: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| !is_generated(file)) {
        // Skips files that git still lists after they were deleted, and files that are not text.
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        faults.extend(faults_of(file, &text).map(|(line, fault)| format!("{file}:{line}: {fault}")));
    }
    faults
}

fn is_generated(file: &str) -> bool {
    file.ends_with(".stderr") || ["bindings.rs", "functions.rs", "layout.rs"].iter().any(|name| file.ends_with(name))
}

/// The faults of one file, with their line numbers.
fn faults_of<'a>(file: &str, text: &'a str) -> impl Iterator<Item = (usize, String)> + 'a {
    let (is_rust, is_document) = (file.ends_with(".rs"), file.ends_with(".md"));
    // A row of a table cannot be broken into lines.
    let is_prose = move |line: &str| {
        let text = line.trim_start_matches(['/', '!', '#', ' ']);
        !text.starts_with('|') && (is_document || line.starts_with(if is_rust { "//" } else { "#" }))
    };
    let lines = text.lines().enumerate();
    // A block of code or output in a document may be wider.
    let mut in_block = false;
    let long = lines.clone().filter(move |(_, line)| {
        let is_prose = is_prose(line.trim_start());
        let is_fence = is_prose && line.trim_start_matches(['/', '!', ' ']).starts_with("```");
        in_block = if is_fence { !in_block } else { in_block && (is_document || is_prose) };
        is_prose && !in_block && line.chars().count() > COLUMNS && !line.contains("://")
    });
    let empty = lines.filter(move |(index, _)| is_rust && argues_nothing(text.lines().skip(*index)));
    let long = long.map(|(index, line)| (index + 1, format!("{} columns", line.chars().count())));
    long.chain(empty.map(|(index, _)| (index + 1, "a SAFETY comment without an argument".to_owned())))
}

/// Whether a SAFETY comment that consists of nothing but an empty argument begins here.
fn argues_nothing<'a>(mut lines: impl Iterator<Item = &'a str>) -> bool {
    let comment = |line: &'a str| line.trim_start().strip_prefix("//");
    let Some(first) = lines.next().and_then(comment).and_then(|text| text.trim().strip_prefix("SAFETY:")) else {
        return false;
    };
    let words = std::iter::once(first).chain(lines.map_while(comment)).flat_map(str::split_whitespace);
    let argument = words.collect::<Vec<_>>().join(" ").to_lowercase();
    EMPTY_ARGUMENTS.contains(&argument.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(file: &str, text: &str) -> Vec<usize> {
        faults_of(file, text).map(|(line, _)| line).collect()
    }

    #[test]
    fn long_comments_are_faults_and_long_code_is_not() {
        let long = "x".repeat(COLUMNS);
        assert_eq!(lines("a.rs", &format!("// {long}\nlet a = {long};\n    /// {long}\n// {}\n", &long[3..])), [1, 3]);
        assert_eq!(lines("a.md", &format!("{long}\n{long}x\n| {long} |\nhttps://{long}\n")), [2]);
        assert_eq!(lines("a.md", &format!("```\n{long}x\n```\n{long}x\n")), [4]);
        assert_eq!(lines("a.rs", &format!("/// ```\n/// {long}\nlet a;\n/// {long}\n")), [4]);
        assert_eq!(lines("a.sh", &format!("# {long}\necho {long}\n")), [1]);
    }

    #[test]
    fn safety_comments_argue() {
        let text =
            "// SAFETY: as above.\n// SAFETY: as above: `a` is live.\n    // SAFETY: the caller's\n    // promise.\n";
        assert_eq!(lines("a.rs", &format!("{text}unsafe {{ f() }}\n// SAFETY: As above\n")), [3, 6]);
        assert_eq!(lines("a.rs", "// SAFETY: as above.\nunsafe { f() }\n"), [1]);
    }
}
