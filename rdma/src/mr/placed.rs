//! How memory was allocated: the size of its pages, and their node.

/// The size of huge pages.
///
/// The administrator reserves them: `hugepagesz=` and `hugepages=` on the kernel's command line, or
/// `/sys/kernel/mm/hugepages`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HugePages {
    /// 2 MiB.
    #[doc(alias = "MAP_HUGE_2MB")]
    Size2M,
    /// 1 GiB.
    #[doc(alias = "MAP_HUGE_1GB")]
    Size1G,
}

impl HugePages {
    /// The size of a page, in bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(rdma::HugePages::Size2M.bytes(), 2 << 20);
    /// ```
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self.bits()
    }

    /// The binary logarithm of the size.
    pub(super) const fn bits(self) -> u8 {
        match self {
            Self::Size2M => 21,
            Self::Size1G => 30,
        }
    }
}

/// How memory was allocated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) huge_pages: Option<HugePages>,
    pub(super) numa_node: Option<u32>,
    /// Whether the pages are there already.
    pub(super) is_touched: bool,
}
