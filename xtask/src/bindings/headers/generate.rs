//! Runs bindgen over the headers.

use std::path::Path;

#[path = "../../../../rdma-sys/bindgen/options.rs"]
mod options;

/// The text of each generated file of rdma-sys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Generated {
    /// `src/bindings.rs`: types and constants.
    pub(crate) types: String,
    /// `tests/it/abi/functions.rs`: declarations of the exported functions.
    pub(crate) functions: String,
}

/// Generates both texts from the headers of `version` in `include`.
pub(crate) fn generate(root: &Path, include: &Path, version: &str) -> Result<Generated, String> {
    let include = Some(include.to_str().ok_or_else(|| format!("{}: not UTF-8", include.display()))?);
    let run = |builder: bindgen::Builder| {
        builder
            .formatter(bindgen::Formatter::Rustfmt)
            .rustfmt_configuration_file(Some(root.join("rustfmt.toml")))
            .generate()
            .map(|bindings| bindings.to_string())
            .map_err(|error| format!("bindgen: {error}"))
    };
    let types = options::tidy(&run(options::types(include))?);
    let functions = run(options::functions(include))?;
    Ok(Generated {
        types: header("Types and constants", version) + &types,
        functions: header("Exported functions", version) + &functions,
    })
}

/// The first lines of a generated file.
pub(crate) fn header(what: &str, version: &str) -> String {
    format!(
        "// {what} of libibverbs and librdmacm, from the headers of rdma-core {version}.\n\
         // Made by `cargo xtask bindings`; do not edit.\n\n"
    )
}

/// The version that `header` wrote into a file.
pub(crate) fn version_of(text: &str) -> Option<&str> {
    text.lines().next()?.split_once("of rdma-core ")?.1.strip_suffix('.')
}
