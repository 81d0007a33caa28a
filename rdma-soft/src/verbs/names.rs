//! The number and the names of the devices: `soft0`, `soft1` and so on, or the names that
//! `RDMA_SOFT_NAMES` lists.

use std::env;

use rdma_sys::{IBV_SYSFS_NAME_MAX, Variable};

use super::call::LIST_LEN;

/// The variable that says how many devices there are.
pub(super) const COUNT: Variable = Variable { name: "RDMA_SOFT_DEVICES", values: "1 to 64" };
/// The variable with the names.
const NAMES: &str = "RDMA_SOFT_NAMES";
/// Largest number of devices.
pub(super) const MAX_DEVICES: usize = LIST_LEN;

/// The rules of the names, as the values that [`NAMES`] may have.
static LENGTH: Variable = Variable { name: NAMES, values: "names of 1 to 63 bytes, separated by commas" };
static CHARACTERS: Variable =
    Variable { name: NAMES, values: "names of letters, digits, `_`, `-` and `.` that begin with a letter" };
static DISTINCT: Variable = Variable { name: NAMES, values: "names of which none comes twice" };
static ENOUGH: Variable =
    Variable { name: NAMES, values: "one name for each of the RDMA_SOFT_DEVICES, which are 1 to 64" };

/// Checks a list of names of devices, separated by commas, for this many devices; `None` leaves the
/// number to the list.
///
/// # Errors
///
/// The rule that the list breaks.
pub fn check_device_names(names: &str, devices: Option<u8>) -> Result<(), &'static Variable> {
    let all: Vec<&str> = names.split(',').collect();
    // A name is a C string in a field of this size.
    if all.iter().any(|name| name.is_empty() || name.len() >= IBV_SYSFS_NAME_MAX as usize) {
        return Err(&LENGTH);
    }
    // Names are parts of paths, and in lists of devices a colon begins the port.
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !all.iter().all(|name| name.as_bytes()[0].is_ascii_alphabetic() && name.bytes().all(is_allowed)) {
        return Err(&CHARACTERS);
    }
    if all.iter().enumerate().any(|(index, name)| all[..index].contains(name)) {
        return Err(&DISTINCT);
    }
    if all.len() > MAX_DEVICES || devices.is_some_and(|devices| usize::from(devices) != all.len()) {
        return Err(&ENOUGH);
    }
    Ok(())
}

/// Checks the names that the environment has; an empty variable counts as unset.
pub(super) fn check_environment() -> Result<(), &'static Variable> {
    match env::var_os(NAMES).filter(|value| !value.is_empty()) {
        None => Ok(()),
        Some(value) => check_device_names(value.to_str().ok_or(&CHARACTERS)?, wanted()),
    }
}

/// The number of devices: that which `RDMA_SOFT_DEVICES` says, or else the number of names; 1 by
/// default.
pub(super) fn count() -> u8 {
    let listed = || u8::try_from(listed()?.split(',').count()).ok();
    wanted().or_else(listed).unwrap_or(1)
}

/// The name of the device with this number.
pub(super) fn name(index: u8) -> String {
    let given = listed().and_then(|names| names.split(',').nth(usize::from(index)).map(str::to_owned));
    given.unwrap_or_else(|| format!("soft{index}"))
}

/// A value of `RDMA_SOFT_DEVICES`.
pub(super) fn device_count(value: &str) -> Option<u8> {
    value.parse().ok().filter(|&count: &u8| (1..=MAX_DEVICES).contains(&usize::from(count)))
}

fn wanted() -> Option<u8> {
    env::var(COUNT.name).ok().and_then(|value| device_count(&value))
}

/// The names in the environment; none if they break a rule.
fn listed() -> Option<String> {
    env::var(NAMES).ok().filter(|names| check_device_names(names, wanted()).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_devices_is_1_to_64() {
        assert_eq!(["1", "2", "64"].map(device_count), [Some(1), Some(2), Some(64)]);
        for text in ["", "0", "65", "256", "-1", "two", "1.5", " 2"] {
            assert_eq!(device_count(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_name_is_a_short_word_that_comes_once() {
        let long = "m".repeat(63);
        for names in ["mlx5_0", "mlx5_0,mlx5_1", "bnxt_re-bond0,roce.1", &long] {
            assert_eq!(check_device_names(names, None), Ok(()), "{names:?}");
        }
        for names in ["", "a,", ",a", "a,,b", &format!("{long}m")] {
            assert_eq!(check_device_names(names, None), Err(&LENGTH), "{names:?}");
        }
        for names in ["a/b", "..", ".", "a:1", "a b", "a, b", "5mlx", "mlx\u{e9}"] {
            assert_eq!(check_device_names(names, None), Err(&CHARACTERS), "{names:?}");
        }
        assert_eq!(check_device_names("a,b,a", None), Err(&DISTINCT));
    }

    #[test]
    fn each_device_has_a_name() {
        let names = |count: u8| (0..count).map(|index| format!("n{index}")).collect::<Vec<_>>().join(",");
        assert_eq!(check_device_names(&names(64), None), Ok(()));
        assert_eq!(check_device_names(&names(65), None), Err(&ENOUGH));
        assert_eq!(check_device_names("a,b", Some(2)), Ok(()));
        assert_eq!([1, 3].map(|count| check_device_names("a,b", Some(count))), [Err(&ENOUGH); 2]);
    }
}
