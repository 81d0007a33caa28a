//! Files that a program writes beside its table, and the option `--json`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::Failure;

/// `--json` of the programs whose report can go to a file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct JsonOptions {
    /// Print JSON in place of the table, or write it to a file
    #[arg(short = 'J', long, help_heading = crate::cli::OUTPUT, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

impl JsonOptions {
    /// The option without a file.
    pub(crate) fn printed() -> Self {
        Self { json: Some("-".into()) }
    }

    /// Whether the option was given.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.json.is_some()
    }

    /// Whether the object goes to standard output, in place of the table.
    #[must_use]
    pub fn is_printed(&self) -> bool {
        self.json.as_ref().is_some_and(|file| file.as_os_str() == "-")
    }

    /// Creates the file; `None` without the option.
    ///
    /// # Errors
    /// As for [`Output::create`].
    pub fn create(&self) -> Result<Option<Output>, Failure> {
        self.json.as_deref().map(Output::create).transpose()
    }
}

/// An open file and its name, or standard output.
#[derive(Debug)]
pub struct Output {
    name: String,
    file: Option<File>,
}

impl Output {
    /// Creates a file; `-` is standard output. Called before measurements, which must not be lost
    /// to a file that cannot be written.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        if name == "-" {
            return Ok(Self { name, file: None });
        }
        match File::create(path) {
            Ok(file) => Ok(Self { name, file: Some(file) }),
            Err(error) => Err(Failure::new(format!("cannot create {name}: {error}; give another path"))),
        }
    }

    /// Writes a line.
    ///
    /// # Errors
    /// If the file, or standard output, cannot be written.
    pub fn line(&mut self, line: &str) -> Result<(), Failure> {
        let Some(file) = &mut self.file else { return Ok(writeln!(io::stdout(), "{line}")?) };
        let written = file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|error| Failure::new(format!("cannot write {}: {error}", self.name)))
    }
}
