//! With feature `bindgen`: makes the bindings from the system's headers.

#[cfg(feature = "bindgen")]
#[path = "bindgen/options.rs"]
mod options;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(rdma_sys_without_flush)");
    #[cfg(feature = "bindgen")]
    generate();
}

/// Argument types of functions of newer versions; bindings of older headers get opaque types for
/// them.
#[cfg(feature = "bindgen")]
const NEWER: &str = "ibv_buf ibv_comp_cntr ibv_comp_cntr_caps ibv_comp_cntr_init_attr ibv_dmah ibv_dmah_init_attr \
    ibv_mr_init_attr ibv_qp_attach_comp_cntr_attr";

#[cfg(feature = "bindgen")]
fn generate() {
    println!("cargo::rerun-if-changed=bindgen/options.rs");
    println!("cargo::rerun-if-env-changed=RDMA_CORE_INCLUDE");
    let include = std::env::var("RDMA_CORE_INCLUDE").ok().filter(|path| !path.is_empty());
    let headers = include.as_deref().unwrap_or("/usr/include");
    let run = |builder: bindgen::Builder| match builder.generate() {
        Ok(bindings) => bindings.to_string(),
        Err(error) => panic!("bindgen cannot read infiniband/verbs.h and rdma/rdma_cma.h in {headers}: {error}"),
    };
    let mut types = options::tidy(&run(options::types(include.as_deref())));
    for name in NEWER.split(' ') {
        if !types.contains(&format!("pub struct {name} {{")) {
            types.push_str(&format!(
                "#[repr(C)]\n#[derive(Debug, Copy, Clone)]\npub struct {name} {{\n_unused: [u8; 0],\n}}\n"
            ));
        }
    }
    if !types.contains("pub wr_flush:") {
        println!("cargo::rustc-cfg=rdma_sys_without_flush");
    }
    let functions = run(options::functions(include.as_deref()));
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(out.join("bindings.rs"), types).expect("OUT_DIR is writable");
    std::fs::write(out.join("functions.rs"), functions).expect("OUT_DIR is writable");
}
