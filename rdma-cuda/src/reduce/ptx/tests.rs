//! Tests of the PTX: run by an interpreter, and assembled by NVIDIA's assembler.

use std::process::Command;

use rdma_mem::{Operation, Scalar};

use super::interpreter::{Kernel, Launch};
use super::{VECTOR, kernel_name, kernels, module};
use crate::reduce::ptx::MOST_OPERANDS;
use crate::reduce::tests::{canonical, expected, samples};

/// Elements of an operand: no multiple of the number of threads.
const COUNT: usize = 45;

/// The result of a kernel on operands that lie one after the other, each at a multiple of an
/// alignment.
fn run(operation: Operation, scalar: Scalar, operands: &[Vec<u8>], alignment: usize) -> Vec<u8> {
    let (size, distance) = (operands[0].len(), operands[0].len().next_multiple_of(alignment));
    let mut global = Vec::new();
    for operand in operands {
        global.extend(operand);
        global.resize(global.len().next_multiple_of(alignment), 0xaa);
    }
    let (before, into) = (global.clone(), global.len());
    global.resize(into + size, 0xaa);
    let mut parameters = (into as u64).to_le_bytes().to_vec();
    for index in 0..MOST_OPERANDS {
        parameters.extend((index * distance).to_le_bytes());
    }
    parameters.extend(u32::try_from(operands.len()).unwrap().to_le_bytes());
    parameters.extend([0; 4]);
    parameters.extend(COUNT.to_le_bytes());
    let vectors = if alignment == VECTOR { size / VECTOR } else { 0 };
    parameters.extend(vectors.to_le_bytes());
    let mut launch = Launch { global, parameters, threads: 4, blocks: 3 };
    Kernel::parse(&module(), &kernel_name(operation, scalar)).run(&mut launch);
    assert_eq!(launch.global[..into], before, "operands have changed");
    launch.global.split_off(into)
}

#[test]
fn every_kernel_computes_as_the_processor() {
    for (operation, scalar) in kernels() {
        let operands = samples(scalar, 4, COUNT);
        let expected = expected(scalar, operation, &operands);
        for alignment in [1, VECTOR] {
            let result = run(operation, scalar, &operands, alignment);
            assert_eq!(canonical(scalar, &result), expected, "{operation:?} of {scalar:?}, {alignment}");
        }
    }
}

#[test]
#[ignore = "run by `cargo xtask ptx`, which gets the assembler"]
fn the_assembler_takes_the_module() {
    let ptxas = std::env::var_os("PTXAS").expect("PTXAS is the path of the assembler");
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("module.ptx");
    std::fs::write(&source, module()).unwrap();
    for architecture in ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"] {
        let mut command = Command::new(&ptxas);
        command.arg(format!("-arch={architecture}")).arg("--warning-as-error").arg("-o").arg("/dev/null").arg(&source);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{architecture}: {}", String::from_utf8_lossy(&text));
    }
}
