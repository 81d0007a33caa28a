//! The exported functions, by groups.
//!
//! NVIDIA's documentation of the driver API is the contract of each function: its pointers are NULL
//! or valid for what it says. An `Option` of a reference has the layout of such a pointer.

mod context;
mod device;
mod memory;
mod missing;
mod module;
mod pointer;
mod stream;
mod vmm;

/// The number of objects that exist.
#[unsafe(no_mangle)]
extern "C" fn stand_in_live() -> usize {
    vmm::live() + memory::live() + module::live() + stream::live() + crate::space::space().live()
}
