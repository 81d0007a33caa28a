//! The instructions of a Dockerfile, as far as ours uses them.

/// An instruction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    /// A new image.
    From { image: String, name: Option<String> },
    /// A line for the shell.
    Run(String),
    /// The folder of what follows.
    WorkDir(String),
    /// The checkout goes to a folder.
    CopyContext { to: String },
    /// A file or folder of another image goes to a path.
    CopyFrom { image: String, from: String, to: String },
    /// The command of the image.
    Command(Vec<String>),
}

/// Reads a Dockerfile.
pub(super) fn instructions(text: &str) -> Result<Vec<Instruction>, String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let whole = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    whole.lines().map(str::trim).filter(|line| !line.is_empty()).map(instruction).collect()
}

fn instruction(line: &str) -> Result<Instruction, String> {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim();
    let words: Vec<&str> = rest.split_whitespace().collect();
    Ok(match (name, &words[..]) {
        ("FROM", [image]) => Instruction::From { image: (*image).to_owned(), name: None },
        ("FROM", [image, "AS", name]) => {
            Instruction::From { image: (*image).to_owned(), name: Some((*name).to_owned()) }
        }
        ("RUN", [_, ..]) => Instruction::Run(rest.to_owned()),
        ("WORKDIR", [path]) => Instruction::WorkDir((*path).to_owned()),
        ("COPY", [".", to]) => Instruction::CopyContext { to: (*to).to_owned() },
        ("COPY", [option, from, to]) if option.starts_with("--from=") => Instruction::CopyFrom {
            image: option["--from=".len()..].to_owned(),
            from: (*from).to_owned(),
            to: (*to).to_owned(),
        },
        ("CMD", [_, ..]) => {
            Instruction::Command(serde_json::from_str(rest).map_err(|error| format!("{line}: {error}"))?)
        }
        _ => return Err(format!("{line:?} is not understood here")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_told_apart_and_lines_go_on() {
        let text = "# comment\nFROM a:1 AS b\nRUN one \\\n    && two\n\nCOPY . /src\nCOPY --from=b /x /y\nCMD [\"p\", \"q\"]\n";
        let parsed = instructions(text).unwrap();
        assert_eq!(parsed[0], Instruction::From { image: "a:1".into(), name: Some("b".into()) });
        let Instruction::Run(line) = &parsed[1] else { panic!("{parsed:?}") };
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["one", "&&", "two"]);
        assert_eq!(parsed[2], Instruction::CopyContext { to: "/src".into() });
        assert_eq!(parsed[3], Instruction::CopyFrom { image: "b".into(), from: "/x".into(), to: "/y".into() });
        assert_eq!(parsed[4], Instruction::Command(vec!["p".into(), "q".into()]));
        assert!(instructions("EXPOSE 80").unwrap_err().contains("EXPOSE"));
    }
}
