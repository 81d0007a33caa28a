//! Options of another program that this one lacks: each is refused with a sentence that says why,
//! and what to use.

use std::fmt;
use std::marker::PhantomData;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};

/// An option of another program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    /// Its letter, if it has one.
    pub(crate) short: Option<char>,
    /// Its long name, if it has one that no option of this program has.
    pub(crate) long: Option<&'static str>,
    /// Its value.
    pub(crate) value: Value,
    /// Why there is no such option, and what to use.
    pub(crate) why: &'static str,
}

/// The value of a refused option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// None.
    No,
    /// Refused, whatever it is.
    Yes,
    /// Refused unless it is this one, which asks for what this program does.
    Unless(&'static str),
}

/// The options of another program that are refused.
pub(crate) trait Refusals: 'static {
    /// The other program, or programs.
    const PROGRAM: &'static str;
    /// The options.
    const OPTIONS: &'static [Refused];
}

/// Arguments that refuse the options of `R`: hidden from the help, and never there after parsing.
pub(crate) struct RefusedOptions<R>(PhantomData<R>);

impl Refused {
    /// The option as a user writes it.
    fn name(&self) -> String {
        match (self.short, self.long) {
            (Some(short), _) => format!("-{short}"),
            (None, long) => format!("--{}", long.unwrap_or_default()),
        }
    }

    /// Its name among the arguments of the command.
    fn id(&self) -> String {
        format!("refused{}", self.name())
    }

    fn arg(&self) -> Arg {
        let arg = Arg::new(self.id()).hide(true);
        let arg = self.short.into_iter().fold(arg, Arg::short);
        let arg = self.long.into_iter().fold(arg, |arg, long| arg.long(long));
        match self.value {
            Value::No => arg.action(ArgAction::SetTrue),
            Value::Yes | Value::Unless(_) => arg.action(ArgAction::Set).value_name("VALUE").allow_hyphen_values(true),
        }
    }

    fn is_asked_for(&self, matches: &ArgMatches) -> bool {
        match self.value {
            Value::No => matches.get_flag(&self.id()),
            Value::Yes => matches.contains_id(&self.id()),
            Value::Unless(usual) => matches.get_one::<String>(&self.id()).is_some_and(|value| value != usual),
        }
    }
}

impl<R: Refusals> clap::Args for RefusedOptions<R> {
    fn augment_args(command: Command) -> Command {
        R::OPTIONS.iter().fold(command, |command, option| command.arg(option.arg()))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R: Refusals> clap::FromArgMatches for RefusedOptions<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let asked = R::OPTIONS.iter().find(|option| option.is_asked_for(matches));
        match asked {
            None => Ok(Self::default()),
            Some(option) => {
                let text = format!("{} has {}: {}", R::PROGRAM, option.name(), option.why);
                Err(clap::Error::raw(ErrorKind::UnknownArgument, text))
            }
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(drop)
    }
}

impl<R> Default for RefusedOptions<R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<R> Clone for RefusedOptions<R> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<R> fmt::Debug for RefusedOptions<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RefusedOptions")
    }
}
