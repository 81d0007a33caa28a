//! The guide: whole programs, the algorithms and their costs, and the way from NCCL and MPI.
//!
//! | Page | What it answers |
//! | --- | --- |
//! | [`programs`] | three whole programs: local ranks, ranks under a launcher, ranks inside a service; which memory is fastest |
//! | [`algorithms`] | what each algorithm does and costs, when it is chosen, how to ask, and how to force one |
//! | [`coming_from_nccl_and_mpi`] | what the names of NCCL and MPI are here, counts, operations in place, and what is missing |
//!
//! Devices, connections and their failures are in the guides of the crates below: `rdma::guide` has
//! [transports](rdma::guide::transports) and [testing](rdma::guide::testing).

macro_rules! pages {
    ($($name:ident = $file:literal, $title:literal;)*) => {
        $(
            #[doc = $title]
            #[cfg_attr(feature = "soft", doc = include_str!($file))]
            #[cfg_attr(not(feature = "soft"), doc = "\n\nThis page is in docs built with the feature `soft`.")]
            pub mod $name {}
        )*
    };
}

pages! {
    programs = "programs.md", "Programs.\n\n";
    algorithms = "algorithms.md", "Algorithms, and how one is chosen.\n\n";
    coming_from_nccl_and_mpi = "coming_from_nccl_and_mpi.md", "Coming from NCCL and MPI.\n\n";
}
