//! Knobs: what the environment and tests make the stand-in do.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::LazyLock;
use std::time::Duration;

/// The type of `stand_in_fail_next`: a name, its length, a code.
pub(crate) type FailNext = unsafe extern "C" fn(*const u8, usize, c_int);

/// The type of `stand_in_live`.
pub(crate) type Live = extern "C" fn() -> usize;

/// The stand-in's settings, read once.
pub(crate) static KNOBS: LazyLock<Knobs> = LazyLock::new(Knobs::from_environment);

thread_local! {
    static FAIL_NEXT: RefCell<Vec<(String, c_int)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Knobs {
    pub(crate) gpus: c_int,
    pub(crate) version: c_int,
    pub(crate) delay: Duration,
    /// MB/s of copies; 0 for no limit.
    copy_rate: u64,
    /// GPU (or all), attribute, value.
    pub(crate) attributes: Vec<(Option<c_int>, c_int, c_int)>,
    fail: Vec<(String, c_int)>,
}

impl Knobs {
    fn from_environment() -> Self {
        Self {
            gpus: number("STAND_IN_GPUS", 4),
            version: number("STAND_IN_VERSION", 12_080),
            delay: Duration::from_micros(number("STAND_IN_DELAY_US", 300)),
            copy_rate: number("STAND_IN_COPY_RATE", 0),
            attributes: entries("STAND_IN_ATTRIBUTES").map(|(key, value)| attribute(&key, value)).collect(),
            fail: entries("STAND_IN_FAIL").collect(),
        }
    }

    /// The time that a copy takes at least.
    pub(crate) fn copy_time(&self, length: usize) -> Duration {
        Duration::from_micros((length as u64).checked_div(self.copy_rate).unwrap_or(0))
    }

    /// The code with which a call by this thread must fail, if it must.
    pub(crate) fn fault(&self, function: &str) -> Option<c_int> {
        let once = FAIL_NEXT.with_borrow_mut(|list| {
            let at = list.iter().position(|(name, _)| name == function)?;
            Some(list.remove(at).1)
        });
        once.or_else(|| self.fail.iter().find(|(name, _)| name == function).map(|(_, code)| *code))
    }
}

/// Makes the next call of a function by the calling thread fail.
///
/// # Safety
///
/// `name` points to `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn stand_in_fail_next(name: *const u8, length: usize, code: c_int) {
    // SAFETY: from_raw_parts requires initialised bytes that nobody changes, as this function does.
    let name = unsafe { std::slice::from_raw_parts(name, length) };
    FAIL_NEXT.with_borrow_mut(|list| list.push((String::from_utf8_lossy(name).into_owned(), code)));
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> T {
    variable(name).map_or(default, |text| parse(name, &text))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// The entries `KEY=NUMBER,...` of a variable.
fn entries(name: &'static str) -> impl Iterator<Item = (String, c_int)> {
    let text = variable(name).unwrap_or_default();
    let entries: Vec<_> = text.split(',').filter(|entry| !entry.is_empty()).map(str::to_owned).collect();
    entries.into_iter().map(move |entry| {
        let (key, value) = entry.split_once('=').unwrap_or_else(|| panic!("{name}: no = in {entry}"));
        (key.to_owned(), parse(name, value))
    })
}

fn attribute(key: &str, value: c_int) -> (Option<c_int>, c_int, c_int) {
    let name = "STAND_IN_ATTRIBUTES";
    let (gpu, attribute) = key.split_once(':').unwrap_or_else(|| panic!("{name}: no : in {key}"));
    ((gpu != "*").then(|| parse(name, gpu)), parse(name, attribute), value)
}

fn parse<T: std::str::FromStr>(name: &str, text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{name}: {text} is no number"))
}
