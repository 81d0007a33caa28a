//! The data and the holes of a file.

use std::fs::File;
use std::io;
use std::ops::Range;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Data(Range<u64>),
    Hole(Range<u64>),
}

/// The extent of a file that begins at the offset of `part`, up to the end of `part`. On a file
/// system that knows no holes all is data.
pub(crate) fn extent(file: &File, part: Range<u64>) -> io::Result<Extent> {
    let seek = |whence| {
        let from = i64::try_from(part.start).map_err(|_| Errno::EOVERFLOW)?;
        lseek(file, from, whence).map(|at| at.unsigned_abs().clamp(part.start, part.end))
    };
    match seek(Whence::SeekData) {
        Ok(data) if data > part.start => Ok(Extent::Hole(part.start..data)),
        Ok(_) => match seek(Whence::SeekHole) {
            Ok(hole) if hole > part.start => Ok(Extent::Data(part.start..hole)),
            // Another program has changed the file in between.
            Ok(_) | Err(Errno::ENXIO) => Ok(Extent::Data(part)),
            Err(errno) => Err(errno.into()),
        },
        // No data follow.
        Err(Errno::ENXIO) => Ok(Extent::Hole(part)),
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(Extent::Data(part)),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_and_data_take_turns() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100 << 30).unwrap();
        file.write_all_at(&[1; 1 << 20], 50 << 30).unwrap();
        let data = (50 << 30)..(50 << 30) + (1 << 20);
        assert_eq!(extent(&file, 0..100 << 30).unwrap(), Extent::Hole(0..data.start));
        assert_eq!(extent(&file, 0..10).unwrap(), Extent::Hole(0..10));
        assert_eq!(extent(&file, data.start..100 << 30).unwrap(), Extent::Data(data.clone()));
        assert_eq!(
            extent(&file, data.start + 5..data.start + 9).unwrap(),
            Extent::Data(data.start + 5..data.start + 9)
        );
        assert_eq!(extent(&file, data.end..100 << 30).unwrap(), Extent::Hole(data.end..100 << 30));
    }
}
