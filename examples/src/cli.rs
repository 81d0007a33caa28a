//! Command line arguments: sizes with suffixes, range checks, one-line errors in place of clap's
//! page, and the frame of the help.
//!
//! `-h` is a first screen, with the options that most people need; `--help` has all. Options stand
//! in groups, in the same order in every program.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, Parser};
use rdma::Mtu;
use rdma_collectives::Named;
use serde::Serialize;

use crate::Failure;

/// A number of bytes: `64`, `64K`, `1M`, `2G` (powers of 1024; `KiB` and `KB` are the same).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let shift = match suffix.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err("a size is a number with K, M, G or T after it, such as 64K".to_owned()),
        };
        let number: usize = number.parse().map_err(|_| "a size is a number such as 4096, 64K or 1M".to_owned())?;
        number
            .checked_mul(1 << shift)
            .filter(|&bytes| bytes <= 1 << 40)
            .map(Self)
            .ok_or_else(|| "no machine has so much memory; the largest size is 1024G".to_owned())
    }
}

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, suffix) in [(30, "G"), (20, "M"), (10, "K")] {
            if self.0 >> shift > 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{suffix}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// Parses a number within a range, for an option's `value_parser`.
///
/// # Errors
/// If `text` is no number of the range; the message gives the range.
pub fn number_in<T: FromStr + PartialOrd + fmt::Display>(text: &str, range: RangeInclusive<T>) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("give {} to {}", range.start(), range.end()))
}

/// Parses a size that is a multiple of `of`, for an option's `value_parser`.
///
/// # Errors
/// If the size is no multiple of `of`, or larger than `most`.
pub fn multiple(text: &str, of: Size, most: Size) -> Result<Size, String> {
    let size: Size = text.parse()?;
    let is_one = size.0 % of.0 == 0 && (of..=most).contains(&size);
    if is_one { Ok(size) } else { Err(format!("give a multiple of {of}, at most {most}")) }
}

/// Parses one of some named values, for an option's `value_parser`; the help lists them.
pub fn one_of<T: Named + Send + Sync>() -> impl TypedValueParser<Value = T> {
    some_of(T::ALL.iter().map(|&value| (value, value.about().trim_end_matches('.'))))
}

/// The names of all values.
pub(crate) fn names<T: Named>() -> Vec<&'static str> {
    T::ALL.iter().map(|value| value.name()).collect()
}

/// Parses one of some of the named values, each with the help's words for it.
pub fn some_of<T: Named + Send + Sync>(
    values: impl IntoIterator<Item = (T, &'static str)>,
) -> impl TypedValueParser<Value = T> {
    let possible = |(value, about): (T, _)| PossibleValue::new(value.name()).aliases(value.other_names()).help(about);
    let values = values.into_iter().map(possible);
    let is_named = |value: &T, name: &str| value.name() == name || value.other_names().contains(&name);
    let named = move |name: String| T::ALL.iter().copied().find(|value| is_named(value, &name));
    PossibleValuesParser::new(values).try_map(move |name| named(name).ok_or("there is no such value"))
}

/// Adds a list of values to the help of an option: to `--help`, not to the first screen.
pub(crate) fn listing(arg: Arg, values: &[&str]) -> Arg {
    let about = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    arg.hide_possible_values(true).long_help(format!("{about}\n\nPossible values: {}", values.join(", ")))
}

/// Parses a time in seconds, for an option's `value_parser`.
///
/// # Errors
/// If the time is zero or longer than a day.
pub fn seconds(text: &str) -> Result<Duration, String> {
    number_in(text, 1..=86400).map(Duration::from_secs).map_err(|range| format!("{range} seconds"))
}

/// Parses a positive count, for an option's `value_parser`.
///
/// # Errors
/// If the count is zero or larger than 10^9.
pub fn count(text: &str) -> Result<usize, String> {
    number_in(text, 1..=1_000_000_000)
}

/// Parses an MTU in bytes, for an option's `value_parser`.
///
/// # Errors
/// If the value is no RDMA path MTU.
pub fn mtu(text: &str) -> Result<u32, String> {
    let bytes = text.parse().ok().filter(|&bytes| Mtu::from_bytes(bytes).is_some());
    bytes.ok_or_else(|| "an MTU is 256, 512, 1024, 2048 or 4096".to_owned())
}

/// The group of the options that say what to do.
pub const WHAT: &str = "What";
/// The group of sizes and numbers.
pub const SIZES: &str = "Sizes";
/// The group of devices, paths and ways to connect.
pub const TRANSPORT: &str = "Transport";
/// The group of the processes and how they meet.
pub const JOB: &str = "Job";
/// The group of what is printed.
pub const OUTPUT: &str = "Output";

/// Most columns of the help.
const COLUMNS: usize = 100;
/// The end of the first screen of the help.
const MORE: &str = "--help shows all options and what they mean.";

/// Name of the option that every program has, whose value is a level of the log.
const LOG: &str = "log";

/// A command line.
pub(crate) struct CommandLine<A> {
    pub(crate) args: A,
    /// The level of the log that `--log` asks for.
    pub(crate) log: Option<String>,
}

impl<A: Parser> CommandLine<A> {
    fn try_parse(command: Command) -> Result<Self, clap::Error> {
        let levels = ["error", "warn", "info", "debug", "trace"];
        let help = "Print the log on standard error, down to this level [env: RUST_LOG]";
        let log = Arg::new(LOG).long(LOG).value_name("LEVEL").value_parser(levels).help(help);
        let command = command.arg(log.global(true).hide_short_help(true).help_heading(OUTPUT));
        let mut command = with_help(command);
        let mut matches = command.try_get_matches_from_mut(std::env::args_os())?;
        let log = matches.get_one::<String>(LOG).cloned();
        let args = A::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
        Ok(Self { args, log })
    }
}

/// Completes the help of a program: its own options, its width, its two lengths, and its groups.
fn with_help(command: Command) -> Command {
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help);
    let help = help.help("Print help: -h a first screen, --help all").global(true).help_heading(OUTPUT);
    let has_version = !command.is_disable_version_flag_set();
    let mut command = command.max_term_width(COLUMNS).disable_help_flag(true).arg(help);
    if has_version {
        let version = Arg::new("version").short('V').long("version").action(ArgAction::Version);
        command = command
            .disable_version_flag(true)
            .arg(version.help("Print version").help_heading(OUTPUT).hide_short_help(true));
    }
    if let Some(end) = command.get_after_long_help().or(command.get_after_help()).cloned() {
        command = command.after_help(MORE).after_long_help(end);
    }
    in_groups(command).mut_subcommands(in_groups)
}

/// Puts the options in the order of their groups: those of a single program stand after the sizes.
fn in_groups(command: Command) -> Command {
    let group = |arg: &Arg| match arg.get_help_heading() {
        Some(WHAT) => 0,
        Some(SIZES) => 1,
        Some(TRANSPORT) => 3,
        Some(JOB) => 4,
        Some(OUTPUT) => 5,
        _ => 2,
    };
    let mut args: Vec<_> = command.get_arguments().map(|arg| (group(arg), arg.get_id().clone())).collect();
    args.sort_by_key(|(group, _)| *group);
    // An argument that is changed becomes the last one.
    args.into_iter().fold(command, |command, (_, id)| command.mut_arg(id.as_str(), |arg| arg))
}

/// Parses the command line of a program's command, or of a variant of it. `--help` and `--version`
/// print their text and return `None`.
///
/// # Errors
/// One line that says which argument is wrong.
pub(crate) fn parse<A: Parser>(command: Command) -> Result<Option<CommandLine<A>>, Failure> {
    let commands = command.get_subcommands().map(Command::get_name).collect::<Vec<_>>().join(", ");
    match CommandLine::try_parse(command) {
        Ok(line) => Ok(Some(line)),
        // Clap names a missing command by the second kind if the environment gave an argument.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand
            ) =>
        {
            Err(Failure::usage(format!("give a command: {commands} (--help explains them)")))
        }
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            error.print()?;
            Ok(None)
        }
        Err(error) => {
            let text = error.to_string();
            // Clap's first paragraph says what is wrong; its usage and tips follow.
            let first = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
            let first = first.strip_prefix("error: ").unwrap_or(&first).to_owned();
            Err(Failure::usage(format!("{first} (--help shows all options)")))
        }
    }
}

/// The sizes from `min` to `max`, each `factor` times the one before, each rounded down to whole
/// elements.
///
/// # Errors
/// If the three values contradict each other.
pub fn size_steps(min: Size, max: Size, factor: usize, element: usize) -> Result<Vec<usize>, Failure> {
    if min > max {
        return Err(Failure::usage(format!("--min {min} is larger than --max {max}; swap them")));
    }
    if factor < 2 {
        return Err(Failure::usage(format!("--factor {factor} would never reach --max; give 2 or more")));
    }
    if min.0 < element {
        return Err(Failure::usage(format!("--min {min} is less than one element; give {element} or more")));
    }
    let mut sizes = Vec::new();
    let mut size = min.0;
    while size <= max.0 {
        let whole = size - size % element;
        if sizes.last() != Some(&whole) {
            sizes.push(whole);
        }
        size = size.saturating_mul(factor);
    }
    Ok(sizes)
}

/// The sizes from `min` to `max`, each `step` bytes larger than the one before, and rounded down to
/// whole elements.
///
/// # Errors
/// If the three values contradict each other.
pub fn size_increments(min: Size, max: Size, step: Size, element: usize) -> Result<Vec<usize>, Failure> {
    if min > max {
        return Err(Failure::usage(format!("--min {min} is larger than --max {max}; swap them")));
    }
    if step.0 < element || min.0 < element {
        let text = format!("--min {min} or --step-bytes {step} is less than one element; give {element} or more");
        return Err(Failure::usage(text));
    }
    let mut sizes: Vec<usize> = (min.0..=max.0).step_by(step.0).map(|size| size - size % element).collect();
    sizes.dedup();
    Ok(sizes)
}

/// Checks that `bytes` of memory are available, so that the kernel's OOM killer does not end a
/// process later.
///
/// # Errors
/// If less memory is available; the message says how much.
pub fn check_memory(bytes: u128, what: &str) -> Result<(), Failure> {
    check_memory_for(bytes, what, "give a smaller --max or fewer ranks")
}

/// Checks memory as [`check_memory`] does, with advice of the caller's own.
///
/// # Errors
/// If less memory is available.
pub(crate) fn check_memory_for(bytes: u128, what: &str, advice: &str) -> Result<(), Failure> {
    // Without /proc the amount is unknown; then the allocation itself fails.
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else { return Ok(()) };
    let Some(available) = available_memory(&text) else { return Ok(()) };
    if bytes > u128::from(available) {
        let gib = |n: f64| n / f64::from(1 << 30);
        return Err(Failure::new(format!(
            "no memory: {what} need {:.1} GiB and {:.1} GiB are available; {advice}",
            gib(bytes as f64),
            gib(available as f64)
        )));
    }
    Ok(())
}

fn available_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_with_suffixes() {
        for (text, bytes) in [("0", 0), ("8", 8), ("64K", 65536), ("1m", 1 << 20), ("2GiB", 2 << 30), ("3KB", 3072)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "K", "-1", "1.5M", "8X", "99999999999G", "99999999999999999999999"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_print_shortest() {
        for text in ["0", "8", "1025", "64K", "1M", "3G"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn steps_cover_the_range() {
        assert_eq!(size_steps(Size(8), Size(64), 2, 4).unwrap(), [8, 16, 32, 64]);
        assert_eq!(size_steps(Size(9), Size(9), 2, 4).unwrap(), [8]);
        assert_eq!(size_steps(Size(4), Size(100), 4, 4).unwrap(), [4, 16, 64]);
        for (min, max, factor) in [(64, 8, 2), (8, 64, 1), (8, 64, 0), (0, 64, 2)] {
            assert!(size_steps(Size(min), Size(max), factor, 4).is_err());
        }
    }

    #[test]
    fn increments_cover_the_range() {
        assert_eq!(size_increments(Size(8), Size(64), Size(20), 8).unwrap(), [8, 24, 48]);
        for (min, max, step) in [(64, 8, 8), (8, 64, 0), (0, 64, 8)] {
            assert!(size_increments(Size(min), Size(max), Size(step), 4).is_err());
        }
    }

    #[test]
    fn meminfo_is_read() {
        assert_eq!(available_memory("MemTotal: 10 kB\nMemAvailable:   7 kB\n"), Some(7168));
        assert_eq!(available_memory("nothing"), None);
        assert!(check_memory(1 << 80, "4 ranks").is_err());
    }
}
