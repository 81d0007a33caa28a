//! Lists of devices in NCCL's syntax: `mlx5_0,mlx5_1`, `mlx5_0:1`, `^mlx5_1`, `=mlx5_0:1`,
//! `^=mlx5_1`.
//!
//! A name stands for all devices whose names begin with it, so `mlx5` is every mlx5 device; after
//! `=` the names of the list are whole names. `^` in front of all turns the list into its opposite.

use std::fmt;
use std::str::FromStr;

use rdma::DeviceSelector;

/// The devices that an option asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The best device: hardware if there is any, else the software device.
    Any,
    /// Hardware.
    Hardware,
    /// The devices of a list.
    Listed(DeviceList),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "" | "any" => Ok(Self::Any),
            "hardware" => Ok(Self::Hardware),
            list => list.parse().map(Self::Listed),
        }
    }
}

/// A list of devices and their ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceList {
    /// Whether the list says which devices not to use.
    excludes: bool,
    /// Whether the names are whole names, in place of beginnings.
    is_exact: bool,
    entries: Vec<Entry>,
}

/// A name, and a port of the devices with this name; every port if `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    port: Option<u8>,
}

impl FromStr for DeviceList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (excludes, list) = text.strip_prefix('^').map_or((false, text), |list| (true, list));
        let (is_exact, list) = list.strip_prefix('=').map_or((false, list), |list| (true, list));
        let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let entries = entries.map(str::parse).collect::<Result<Vec<_>, _>>()?;
        if entries.is_empty() {
            return Err(format!(
                "`{text}` names no device: write a list of names, such as ^mlx5_1 or =mlx5_0:1,mlx5_2"
            ));
        }
        Ok(Self { excludes, is_exact, entries })
    }
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<DeviceSelector>() {
            Ok(_) if text.contains(['^', '=']) => {
                Err(format!("`{text}` is no device: ^ and = stand once, in front of the whole list"))
            }
            Ok(DeviceSelector::Named { name, port }) => Ok(Self { name, port }),
            Ok(_) => Err(format!("`{text}` stands alone, not in a list: write names of devices")),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl DeviceList {
    /// Whether the list allows a port of a device.
    #[must_use]
    pub fn allows(&self, device: &str, port: u8) -> bool {
        self.find(device, |entry| entry.port.is_none_or(|wanted| wanted == port)) != self.excludes
    }

    /// Whether the list allows a port of a device, as far as the name tells.
    #[must_use]
    pub fn allows_some(&self, device: &str) -> bool {
        self.find(device, |entry| !self.excludes || entry.port.is_none()) != self.excludes
    }

    fn find(&self, device: &str, fits: impl Fn(&Entry) -> bool) -> bool {
        let is_name = |name: &str| if self.is_exact { device == name } else { device.starts_with(name) };
        self.entries.iter().any(|entry| is_name(&entry.name) && fits(entry))
    }

    /// The devices among `names` that the list may allow, in their order; but devices whose whole
    /// names are listed come before devices that only begin like them.
    #[must_use]
    pub fn candidates(&self, names: &[String]) -> Vec<usize> {
        let mut found: Vec<usize> = (0..names.len()).filter(|&at| self.allows_some(&names[at])).collect();
        let is_whole = |at: usize| !self.excludes && self.entries.iter().any(|entry| entry.name == names[at]);
        found.sort_by_key(|&at| !is_whole(at));
        found
    }

    /// The device and port that the list names, if it is a single name.
    #[must_use]
    pub fn single(&self) -> Option<(&str, Option<u8>)> {
        match &self.entries[..] {
            [entry] if !self.excludes => Some((&entry.name, entry.port)),
            _ => None,
        }
    }
}

impl fmt::Display for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.excludes { "^" } else { "" }, if self.is_exact { "=" } else { "" })?;
        for (at, Entry { name, port }) in self.entries.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match port {
                Some(port) => write!(f, "{comma}{name}:{port}")?,
                None => write!(f, "{comma}{name}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ports that a list allows of these devices with two ports each.
    fn allowed(list: &str) -> Vec<String> {
        let list: DeviceList = list.parse().unwrap();
        let names = ["mlx5_0", "mlx5_1", "mlx5_10", "soft0"];
        let ports = names.iter().flat_map(|name| [1, 2].map(|port| (name, port)));
        ports.filter(|(name, port)| list.allows(name, *port)).map(|(name, port)| format!("{name}:{port}")).collect()
    }

    #[test]
    fn a_name_is_a_beginning_and_after_an_equals_sign_a_whole_name() {
        assert_eq!(allowed("mlx5_1"), ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1", "mlx5_10:2"]);
        assert_eq!(allowed("=mlx5_1"), ["mlx5_1:1", "mlx5_1:2"]);
        assert_eq!(allowed("mlx5").len(), 6);
        assert!(allowed("=mlx5").is_empty());
        assert!(allowed("mlx5_100").is_empty());
    }

    #[test]
    fn ports_are_part_of_an_entry() {
        assert_eq!(allowed("mlx5_1:2"), ["mlx5_1:2", "mlx5_10:2"]);
        assert_eq!(allowed("=mlx5_0:1,soft0"), ["mlx5_0:1", "soft0:1", "soft0:2"]);
    }

    #[test]
    fn a_caret_excludes() {
        assert_eq!(allowed("^mlx5_1"), ["mlx5_0:1", "mlx5_0:2", "soft0:1", "soft0:2"]);
        assert_eq!(allowed("^=mlx5_1,soft0"), ["mlx5_0:1", "mlx5_0:2", "mlx5_10:1", "mlx5_10:2"]);
        assert_eq!(allowed("^mlx5:2"), ["mlx5_0:1", "mlx5_1:1", "mlx5_10:1", "soft0:1", "soft0:2"]);
    }

    #[test]
    fn whole_names_come_first() {
        let names = ["mlx5_10", "mlx5_1", "soft0"].map(str::to_owned);
        let candidates = |list: &str| list.parse::<DeviceList>().unwrap().candidates(&names);
        assert_eq!(candidates("mlx5_1"), [1, 0]);
        assert_eq!(candidates("soft,mlx5_10"), [0, 2]);
        assert_eq!(candidates("^mlx5_10"), [1, 2]);
        // The other ports remain.
        assert_eq!(candidates("^soft0:1"), [0, 1, 2]);
    }

    #[test]
    fn lists_read_back_as_written() {
        for text in ["mlx5_0", "mlx5_0:1", "^mlx5_0,mlx5_1:2", "=soft0", "^=soft0:1"] {
            assert_eq!(text.parse::<DeviceList>().unwrap().to_string(), text);
        }
        assert_eq!(" mlx5_0 , ,mlx5_1,".parse::<DeviceList>().unwrap().to_string(), "mlx5_0,mlx5_1");
        assert_eq!(["", "any", "hardware"].map(str::parse), [Ok(Wanted::Any), Ok(Wanted::Any), Ok(Wanted::Hardware)]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("^", "`^` names no device"),
            ("=,", "names no device"),
            ("a b", "`a b` is no device"),
            ("mlx5_0:x", "`mlx5_0:x` is no device"),
            ("mlx5_0,=mlx5_1", "in front of the whole list"),
            ("mlx5_0,^mlx5_1", "in front of the whole list"),
            ("=^mlx5_0", "in front of the whole list"),
            ("^hardware", "`hardware` stands alone"),
            ("any,soft0", "`any` stands alone"),
        ] {
            let error = text.parse::<Wanted>().unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }
}
