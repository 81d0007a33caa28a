//! Developer commands.
#[cfg(feature = "bindings")]
mod bindings {
    pub(crate) mod generate;
}
fn main() {
    #[cfg(feature = "bindings")]
    {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let a: Vec<String> = std::env::args().collect();
        let g =
            bindings::generate::generate(root, a.get(1).map(|a| std::path::Path::new(a.as_str())), "65.0-1.1 (Debian)")
                .unwrap();
        std::fs::write(root.join("rdma-sys/src/bindings.rs"), g.types).unwrap();
        std::fs::write(root.join("rdma-sys/src/functions.rs"), g.functions).unwrap();
    }
}
