//! The greatest distance at which a NIC accesses a GPU's memory directly.

use std::fmt;
use std::str::FromStr;

use super::Distance;

/// The greatest distance between GPU and NIC at which the direct path is preferred, with the names
/// and numbers of NCCL's `NCCL_NET_GDR_LEVEL`.
///
/// Processors forward traffic between PCIe devices slowly: across a host bridge, staging in host
/// memory may be faster. The default is [`Distance::Pxb`], as in NCCL.
///
/// # Examples
///
/// ```
/// use rdma_cuda::{Distance, Level};
///
/// let level: Level = "PHB".parse()?;
/// assert!(level.allows(Distance::Pix) && !level.allows(Distance::Sys));
/// assert!(level.allows(Distance::Unknown));
/// assert_eq!("3".parse(), Ok(level));
/// # Ok::<(), rdma_cuda::ParseLevelError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Level(Distance);

impl Level {
    /// The level that allows a distance and all nearer ones.
    #[must_use]
    pub const fn up_to(distance: Distance) -> Self {
        Self(distance)
    }

    /// Whether the direct path is preferred at a distance. An unknown distance is allowed: virtual
    /// machines hide where their devices are.
    #[must_use]
    pub fn allows(self, distance: Distance) -> bool {
        distance == Distance::Unknown || distance <= self.0
    }
}

impl Default for Level {
    fn default() -> Self {
        Self(Distance::Pxb)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Level {
    type Err = ParseLevelError;

    fn from_str(text: &str) -> Result<Self, ParseLevelError> {
        let distance = match text.trim().to_ascii_uppercase().as_str() {
            "LOC" | "0" => Distance::Loc,
            "PIX" | "1" => Distance::Pix,
            "PXB" | "2" => Distance::Pxb,
            "PHB" | "3" => Distance::Phb,
            "SYS" => Distance::Sys,
            // Greater numbers are SYS too.
            number if number.parse::<u32>().is_ok() => Distance::Sys,
            _ => return Err(ParseLevelError(text.to_owned())),
        };
        Ok(Self(distance))
    }
}

/// The text is not a [`Level`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no distance of GPU and NIC: use LOC, PIX, PXB, PHB or SYS, or 0 to 4")]
pub struct ParseLevelError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_nccls() {
        use Distance::{Loc, Phb, Pix, Pxb, Sys};
        for (number, (name, distance)) in
            [("LOC", Loc), ("PIX", Pix), ("PXB", Pxb), ("PHB", Phb), ("SYS", Sys)].into_iter().enumerate()
        {
            let level = Level::up_to(distance);
            assert_eq!((name.parse(), number.to_string().parse()), (Ok(level), Ok(level)));
            assert_eq!(level.to_string(), name);
        }
        assert_eq!((" pix ".parse(), "17".parse()), (Ok(Level(Pix)), Ok(Level(Sys))));
        for wrong in ["", "-1", "NODE", "99999999999", "PIX,PXB"] {
            let error = wrong.parse::<Level>().unwrap_err().to_string();
            assert!(error.contains("LOC, PIX, PXB, PHB or SYS"), "{error}");
        }
    }

    #[test]
    fn a_level_allows_what_is_as_near() {
        let level = Level::default();
        assert!(level.allows(Distance::Pxb) && level.allows(Distance::Loc) && level.allows(Distance::Unknown));
        assert!(!level.allows(Distance::Phb) && !level.allows(Distance::Sys));
    }
}
