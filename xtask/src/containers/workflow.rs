//! The steps of a GitHub workflow or action, as far as ours use its YAML: `uses: NAME`, `run: LINE`
//! and `run: |` with a block.

/// A step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An action, without its version.
    Uses(String),
    /// Lines for the shell.
    Run(String),
}

/// Reads the steps of all jobs, in order.
pub(super) fn steps(text: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let (key, value) = match line.trim_start().trim_start_matches("- ").split_once(':') {
            Some((key, value)) => (key, value.trim()),
            None => continue,
        };
        match (key, value) {
            ("uses", name) => steps.push(Step::Uses(name.split('@').next().unwrap_or(name).trim().to_owned())),
            ("run", "|") => {
                let is_inside = |line: &&str| line.trim().is_empty() || line.len() - line.trim_start().len() > indent;
                let mut block = Vec::new();
                while let Some(line) = lines.next_if(is_inside) {
                    block.push(line.trim());
                }
                steps.push(Step::Run(block.join("\n").trim().to_owned()));
            }
            ("run", line) if line.is_empty() || line.starts_with(['>', '"', '\'']) => {
                return Err(format!("{line:?} after `run` is not understood here"));
            }
            ("run", line) => steps.push(Step::Run(line.to_owned())),
            _ => {}
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_lines_blocks_and_actions() {
        let text = "jobs:\n  a:\n    steps:\n      - uses: x/y@v4  # comment\n      - name: n\n        run: |\n          one &\n          \
                    wait\n      - run: two\n";
        let run = |line: &str| Step::Run(line.to_owned());
        assert_eq!(steps(text).unwrap(), [Step::Uses("x/y".into()), run("one &\nwait"), run("two")]);
        assert!(steps("run: >\n  folded\n").is_err());
    }
}
