// How bindgen reads the headers. Shared by `cargo xtask bindings`, which makes the committed files,
// and by this crate's build script with feature `bindgen`.

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, IntKind, ParseCallbacks};

/// The public interfaces of both libraries.
const HEADER: &str = "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <rdma/rdma_verbs.h>\n";

/// Types that the libc crate has: their layout differs between targets, so the generated file must
/// not hold it.
const FROM_LIBC: &str =
    "pthread_mutex_t|pthread_cond_t|sockaddr|sockaddr_in|sockaddr_in6|sockaddr_storage|socklen_t|timespec";

/// Types of which only those are made.
const INSIDE_LIBC: &str = "__pthread_.*|__atomic_wide_counter.*|__time_t|__syscall_slong_t|__socklen_t|sa_family_t|\
    in_port_t|in_addr.*|in6_addr.*";

/// Enums whose values are bits.
const FLAGS: &str = "ibv_.*_(flags|flags2|mask|caps|cap_bits|fields|size)|ibv_placement_type|ibv_qp_attach_comp_cntr_op|\
    rdma_cm_join_mc_attr_mask|rdma_cm_mc_join_flags";

/// Kernel types to which `verbs_api.h` gives names of its own.
const KERNEL: &str = "ib_uverbs_(flow_action_esp.*|advise_mr_advice|advise_mr_flag|query_port_flags|access_flags)";

const NAMES: &str = "_?ibv_.*|_compat_ibv_.*|verbs_.*|mult_to_ibv_rate|mbps_to_ibv_rate|rdma_.*";

#[derive(Debug)]
struct Callbacks;

impl ParseCallbacks for Callbacks {
    /// bindgen reads a macro's value as `i64`, so masks of 64 bits would become negative.
    fn int_macro(&self, name: &str, value: i64) -> Option<IntKind> {
        (name.starts_with("RDMA_IB_") || i32::try_from(value).is_err()).then_some(IntKind::U64)
    }

    /// The libc crate's types are all plain data, but they compare only with a feature of it that
    /// we do not ask for.
    fn blocklisted_type_implements_trait(&self, _: &str, wanted: DeriveTrait) -> Option<ImplementsTrait> {
        Some(match wanted {
            DeriveTrait::Copy | DeriveTrait::Debug => ImplementsTrait::Yes,
            _ => ImplementsTrait::No,
        })
    }
}

fn common(include: Option<&str>) -> bindgen::Builder {
    let builder = bindgen::builder()
        .header_contents("rdma.h", HEADER)
        .use_core()
        .generate_comments(false)
        .layout_tests(false)
        .merge_extern_blocks(true)
        .rust_target(bindgen::RustTarget::stable(85, 0).expect("a version that bindgen knows"))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .disable_header_comment()
        .allowlist_recursively(true)
        .parse_callbacks(Box::new(Callbacks));
    match include {
        Some(folder) => builder.clang_arg("-isystem").clang_arg(folder),
        None => builder,
    }
}

/// Types and constants.
pub(crate) fn types(include: Option<&str>) -> bindgen::Builder {
    common(include)
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .bitfield_enum(FLAGS)
        // Unnamed enums only (no enum has such a name): their constants become plain integers.
        .constified_enum("IBV_.*|RDMA_.*")
        .derive_default(true)
        .derive_eq(true)
        .ignore_functions()
        .allowlist_type(NAMES)
        .allowlist_type(KERNEL)
        .allowlist_var("IBV_.*|RDMA_.*|RAI_.*|IB_ROCE_.*|IB_GRH_.*|ETHERNET_LL_SIZE")
        .blocklist_type(FROM_LIBC)
        .blocklist_type(INSIDE_LIBC)
        // The kernel's numbers of its drivers, which verbs.h includes with other things.
        .blocklist_type("rdma_driver_id")
        .raw_line("use libc::{pthread_cond_t, pthread_mutex_t, timespec};")
        .raw_line("use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};")
}

/// Declarations of the exported functions. `ibv_static_providers` takes a variable number of
/// arguments and only steers static linking.
pub(crate) fn functions(include: Option<&str>) -> bindgen::Builder {
    common(include)
        .allowlist_function(NAMES)
        .blocklist_function("ibv_static_providers")
        .blocklist_type(".*")
        .raw_line("use super::bindings::*;")
        .raw_line("use libc::sockaddr;")
}

/// Removes the names that bindgen gives to unnamed enums: they are numbered, so every new header
/// would shift them.
pub(crate) fn tidy(source: &str) -> String {
    const ALIAS: &str = "_bindgen_ty_";
    let mut tidied = String::with_capacity(source.len());
    for line in source.lines().filter(|line| !line.starts_with("pub type _bindgen_ty_")) {
        match line.split_once(": _bindgen_ty_") {
            Some((name, rest)) => {
                let value = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                tidied.extend([name, ": ::core::ffi::c_uint", value]);
            }
            None => tidied.push_str(line),
        }
        tidied.push('\n');
    }
    assert!(!tidied.contains(&format!(" {ALIAS}")), "an unnamed enum is used as a type");
    tidied
}
