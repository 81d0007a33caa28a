//! The headers' inline functions, compiled by a C compiler into a library that this test loads.

use std::{collections::BTreeSet, fmt::Write as _, path::Path};

use libloading::os::unix::Library;
use rdma_test_support::{Compiler, say};

/// The exported symbols that the inline functions call. The library defines them and passes each
/// call on to a hook.
const EXPORTED: &str = r"
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define EXPORTED(type, name, parameters, arguments) \
    type(*hook_##name) parameters; \
    type name parameters { return hook_##name arguments; }

struct verbs_device_ops { int nothing; };
const struct verbs_device_ops verbs_provider_none;
void ibv_static_providers(void *unused, ...) { (void)unused; }

EXPORTED(struct ibv_device **, ibv_get_device_list, (int *n), (n))
EXPORTED(int, ibv_query_device, (struct ibv_context *c, struct ibv_device_attr *a), (c, a))
EXPORTED(int, ibv_query_port, (struct ibv_context *c, uint8_t p, struct _compat_ibv_port_attr *a), (c, p, a))
EXPORTED(int, _ibv_query_gid_ex,
    (struct ibv_context *c, uint32_t p, uint32_t i, struct ibv_gid_entry *e, uint32_t f, size_t s), (c, p, i, e, f, s))
EXPORTED(ssize_t, _ibv_query_gid_table,
    (struct ibv_context *c, struct ibv_gid_entry *e, size_t m, uint32_t f, size_t s), (c, e, m, f, s))
EXPORTED(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *p, void *a, size_t l, int f), (p, a, l, f))
EXPORTED(struct ibv_mr *, ibv_reg_mr_iova, (struct ibv_pd *p, void *a, size_t l, uint64_t i, int f), (p, a, l, i, f))
EXPORTED(struct ibv_mr *, ibv_reg_mr_iova2,
    (struct ibv_pd *p, void *a, size_t l, uint64_t i, unsigned int f), (p, a, l, i, f))
EXPORTED(struct ibv_srq *, ibv_create_srq, (struct ibv_pd *p, struct ibv_srq_init_attr *a), (p, a))
EXPORTED(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *p, struct ibv_qp_init_attr *a), (p, a))
EXPORTED(int, ibv_dereg_mr, (struct ibv_mr *m), (m))
EXPORTED(int, ibv_get_cq_event, (struct ibv_comp_channel *l, struct ibv_cq **q, void **c), (l, q, c))
EXPORTED(void, ibv_ack_cq_events, (struct ibv_cq *q, unsigned int n), (q, n))
";

/// The headers with inline functions, and an include of all of them.
const HEADERS: [&str; 3] = ["infiniband/verbs.h", "rdma/rdma_cma.h", "rdma/rdma_verbs.h"];
const INCLUDE: &str = "#include <rdma/rdma_verbs.h>\n";

/// A statically linked program sets this, which gives the header one more function.
const STATIC: &str = "-DRDMA_STATIC_PROVIDERS=none";

const COMP_CNTR: &str = r"
EXPORTED(int, _ibv_query_comp_cntr_caps, (struct ibv_context *c, struct ibv_comp_cntr_caps *a, size_t s), (c, a, s))
";

/// The library and its contents.
#[derive(Debug)]
pub(crate) struct Twins {
    library: &'static Library,
    /// The names of the headers' inline functions.
    pub(crate) names: BTreeSet<String>,
    /// Whether the headers are those of the bindings.
    pub(crate) newest: bool,
}

impl Twins {
    /// Compiles and loads the library; `None` without a compiler or headers.
    pub(crate) fn build(test: &str) -> Option<Self> {
        let compiler = Compiler::find(Path::new(env!("CARGO_TARGET_TMPDIR")).join(test))?;
        let names = inline_functions(&compiler);
        let mut source = format!("{INCLUDE}{EXPORTED}");
        if names.contains("ibv_query_comp_cntr_caps") {
            source.push_str(COMP_CNTR);
        }
        source.push_str("const size_t size_of_port_attr = sizeof(struct ibv_port_attr);\n");
        for name in &names {
            writeln!(source, "const void *const twin_{name} = (const void *)&{name};").expect("a string is writable");
        }
        let path = compiler.output("twins.so");
        let arguments = [STATIC, "-shared", "-fPIC", "-O1", "-w", "-Wl,-Bsymbolic", "-o", &path];
        let output = compiler.run("twins", &source, &arguments).expect("the compiler ran before");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // SAFETY: open requires that the library's initialisers may run: the library has none.
        let library =
            unsafe { Library::open(Some(path), libc::RTLD_NOW | libc::RTLD_LOCAL) }.expect("it was just made");
        let newest = compiler.newest();
        say(&format!("{test}: the headers have {} inline functions", names.len()));
        Some(Self { library: Box::leak(Box::new(library)), names, newest })
    }

    /// The inline function of that name, if the header has it.
    ///
    /// # Safety
    ///
    /// `F` is the function's type.
    pub(crate) unsafe fn twin<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: get requires the variable's type: `build` defines a pointer to that function, and
        // `F` is the function's type.
        let variable = unsafe { self.library.get::<*const Option<F>>(format!("twin_{name}").as_bytes()) }.ok()?;
        // SAFETY: the read requires a live variable that nothing writes: the library stays loaded,
        // and the variable is const.
        unsafe { **variable }
    }

    /// Makes the exported symbol of that name call `function`.
    ///
    /// # Safety
    ///
    /// `F` is the function's type.
    pub(crate) unsafe fn hook<F: Copy>(&self, name: &str, function: F) {
        // SAFETY: get requires the variable's type: `EXPORTED` defines a pointer to a function of
        // the symbol's type.
        let variable = unsafe { self.library.get::<*mut Option<F>>(format!("hook_{name}").as_bytes()) };
        if let Ok(variable) = variable {
            // SAFETY: the write requires a live variable that no other thread uses: the library
            // stays loaded, and one test has one.
            unsafe { **variable = Some(function) };
        }
    }

    /// The header's `sizeof(struct ibv_port_attr)`.
    pub(crate) fn size_of_port_attr(&self) -> u64 {
        // SAFETY: get requires the variable's type: `build` defines it so.
        let variable = unsafe { self.library.get::<*const usize>(b"size_of_port_attr") }.expect("it is defined");
        // SAFETY: the read requires a live variable that nothing writes: the library stays loaded,
        // and the variable is const.
        unsafe { **variable as u64 }
    }
}

/// The names of all `static inline` functions in the preprocessor's output for the headers.
fn inline_functions(compiler: &Compiler) -> BTreeSet<String> {
    let output = compiler.run("inline", INCLUDE, &[STATIC, "-E"]).expect("the compiler ran before");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut in_header = false;
    let mut code = String::new();
    for line in text.lines() {
        match line.strip_prefix("# ") {
            Some(marker) => in_header = HEADERS.iter().any(|header| marker.contains(&format!("{header}\""))),
            None if in_header => code.extend([line, " "]),
            None => {}
        }
    }
    code.split("static inline")
        .skip(1)
        .map(|function| {
            let head =
                function.split(" (").next().and_then(|head| head.split('(').next()).expect("a function has a list");
            let name = head.trim_end().rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
            name.expect("a function has a name").to_owned()
        })
        .collect()
}
