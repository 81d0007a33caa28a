//! Counts the instructions of the ways in `counts.txt`, and compares: `cargo xtask counts`.

use std::error::Error;
use std::fs;
use std::io;
use std::path::PathBuf;

use rdma_benches::counts::{self, Counts};
use rdma_benches::mode;

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(name) = mode::option("--count") {
        return Ok(counts::go(&name)?);
    }
    let counted = match Counts::measure() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return without_valgrind(),
        counted => counted?,
    };
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("counts.txt");
    if std::env::args().any(|argument| argument == "--update") {
        fs::write(&path, counted.to_string())?;
        println!("{}:\n{counted}", path.display());
        return Ok(());
    }
    let table = Counts::parse(&fs::read_to_string(&path)?)?;
    let differences = table.differences(&counted);
    differences.iter().for_each(|line| println!("{line}"));
    if table.compiler != counted.compiler {
        println!("not compared: counted with {}, while the table is of {}", counted.compiler, table.compiler);
    } else if !differences.is_empty() {
        let count = differences.len();
        return Err(format!(
            "{count} counts differ from benches/counts.txt by more than 2 %: find out why (callgrind_annotate shows \
             where), or commit what `cargo xtask counts --update` writes and say the reason in the commit"
        )
        .into());
    }
    print!("{counted}");
    Ok(())
}

/// A machine of CI has valgrind; elsewhere this is no failure.
fn without_valgrind() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("CI").is_some_and(|value| value == "true") {
        return Err("valgrind is not installed".into());
    }
    println!("1 skipped: valgrind is not installed");
    Ok(())
}
