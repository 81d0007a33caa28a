//! Names of GPUs: numbers, PCI addresses and identities.

use std::fmt;
use std::str::FromStr;

/// A name of a GPU: its number, its address or its identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GpuName {
    /// The number among the GPUs that the process may use, such as `0`.
    Ordinal(i32),
    /// The PCI address as sysfs writes it, such as `0000:1b:00.0`.
    PciId(String),
    /// The identity, such as `GPU-00010203-0405-0607-0809-0a0b0c0d0e0f`.
    Uuid(Uuid),
}

impl FromStr for GpuName {
    type Err = InvalidGpuName;

    /// Takes a PCI address also as `nvidia-smi` and `lspci` write it: with a domain of eight digits
    /// or none, and in capitals.
    fn from_str(text: &str) -> Result<Self, InvalidGpuName> {
        let invalid = || InvalidGpuName(text.to_owned());
        if let Ok(ordinal) = text.parse() {
            return Ok(Self::Ordinal(ordinal));
        }
        if text.starts_with("GPU-") {
            return text.parse().map(Self::Uuid);
        }
        let (start, function) = text.split_once('.').ok_or_else(invalid)?;
        let parts: Vec<&str> = start.split(':').chain([function]).collect();
        let number = |part: &str| u32::from_str_radix(part, 16).map_err(|_| invalid());
        let (domain, rest) = match parts[..] {
            [domain, bus, device, function] => (number(domain)?, [bus, device, function]),
            [bus, device, function] => (0, [bus, device, function]),
            _ => return Err(invalid()),
        };
        let [bus, device, function] = [number(rest[0])?, number(rest[1])?, number(rest[2])?];
        Ok(Self::PciId(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")))
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ordinal(ordinal) => ordinal.fmt(f),
            Self::PciId(id) => id.fmt(f),
            Self::Uuid(uuid) => uuid.fmt(f),
        }
    }
}

/// A text that names no GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no GPU: give a number, a PCI address such as 0000:1b:00.0, or a UUID such as GPU-00010203-0405-..."
)]
pub struct InvalidGpuName(String);

/// The identity of a GPU, written as `nvidia-smi` writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = InvalidGpuName;

    fn from_str(text: &str) -> Result<Self, InvalidGpuName> {
        let digits = text.strip_prefix("GPU-").unwrap_or_default().replace('-', "");
        let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
        number.map(|number| Self(number.to_be_bytes())).ok_or_else(|| InvalidGpuName(text.to_owned()))
    }
}
