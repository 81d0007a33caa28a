//! Runs PTX on the processor, one thread after the other: as much of the language as the kernels
//! have.

use std::collections::HashMap;

use half::f16;

/// The memory and the parameters of a launch. Addresses of global memory are indexes of `global`.
pub(super) struct Launch {
    pub(super) global: Vec<u8>,
    pub(super) parameters: Vec<u8>,
    pub(super) threads: u32,
    pub(super) blocks: u32,
}

/// An instruction, such as `@!%nan add.u32 %word, %word, %odd`.
struct Instruction<'a> {
    /// The predicate, and the value that it must have.
    guard: Option<(&'a str, bool)>,
    operation: &'a str,
    operands: Vec<&'a str>,
}

/// A kernel, taken from the text of a module.
pub(super) struct Kernel<'a> {
    /// The offset of each parameter.
    parameters: HashMap<&'a str, u64>,
    code: Vec<Instruction<'a>>,
    labels: HashMap<&'a str, usize>,
}

impl<'a> Kernel<'a> {
    pub(super) fn parse(module: &'a str, name: &str) -> Self {
        let (_, text) = module.split_once(&format!(".entry {name}(")).expect("a kernel of this name");
        let (parameters, body) = text.split_once(")\n{").expect("a body");
        let (body, _) = body.split_once("\n}").expect("the end of the body");
        let mut kernel = Self { parameters: offsets(parameters), code: Vec::new(), labels: HashMap::new() };
        for line in body.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(".reg")) {
            match line.strip_suffix(':') {
                Some(label) => drop(kernel.labels.insert(label, kernel.code.len())),
                None => kernel.code.push(instruction(line.strip_suffix(';').expect("a semicolon"))),
            }
        }
        kernel
    }

    pub(super) fn run(&self, launch: &mut Launch) {
        for block in 0..launch.blocks {
            for thread in 0..launch.threads {
                let special = [
                    ("%ctaid.x", block),
                    ("%tid.x", thread),
                    ("%nctaid.x", launch.blocks),
                    ("%ntid.x", launch.threads),
                ];
                let registers = special.map(|(name, value)| (name, value.into())).into();
                Thread { kernel: self, launch, registers }.run();
            }
        }
    }
}

/// The offset of each parameter of a kernel.
fn offsets(declarations: &str) -> HashMap<&str, u64> {
    let mut end = 0_u64;
    let declarations = declarations.split(',').map(|declaration| {
        let name = declaration.split_whitespace().last().expect("a name");
        let (name, size) = match name.split_once('[') {
            Some((name, size)) => (name, size.trim_end_matches(']').parse().expect("a size")),
            None if declaration.contains(".u32") => (name, 4),
            None => (name, 8),
        };
        let start = end.next_multiple_of(if size == 4 { 4 } else { 8 });
        end = start + size;
        (name, start)
    });
    declarations.collect()
}

fn instruction(text: &str) -> Instruction<'_> {
    let (guard, text) = match text.strip_prefix('@') {
        Some(text) => {
            let (guard, text) = text.split_once(' ').expect("an instruction after the guard");
            let negated = guard.strip_prefix('!');
            (Some((negated.unwrap_or(guard), negated.is_none())), text)
        }
        None => (None, text),
    };
    let (operation, operands) = text.split_once(' ').unwrap_or((text, ""));
    Instruction { guard, operation, operands: operands.split(", ").collect() }
}

/// A thread of a kernel.
struct Thread<'a, 'l> {
    kernel: &'a Kernel<'a>,
    launch: &'l mut Launch,
    registers: HashMap<&'a str, u64>,
}

impl<'a> Thread<'a, '_> {
    fn run(&mut self) {
        let mut next = 0;
        loop {
            let Instruction { guard, operation, operands } = &self.kernel.code[next];
            next += 1;
            if guard.is_some_and(|(predicate, wanted)| (self.value(predicate) != 0) != wanted) {
                continue;
            }
            match *operation {
                "ret" => return,
                "bra" => next = self.kernel.labels[operands[0]],
                _ if operation.contains(".v") => self.access_vector(operation, operands),
                _ => self.execute(operation, operands),
            }
        }
    }

    /// The value of a register, a parameter's address or a number.
    fn value(&self, operand: &str) -> u64 {
        let operand = operand.trim_start_matches('[').trim_end_matches(']');
        if let Some(value) = self.registers.get(operand).or_else(|| self.kernel.parameters.get(operand)) {
            return *value;
        }
        match operand.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => operand.parse(),
        }
        .unwrap_or_else(|_| panic!("{operand} has no value"))
    }

    fn execute(&mut self, operation: &str, operands: &[&'a str]) {
        let (family, kind) = operation.rsplit_once('.').expect("a type");
        let [first, second, third] = [1, 2, 3].map(|at| operands.get(at).map_or(0, |operand| self.value(operand)));
        let result = match family {
            "ld.param" => read(&self.launch.parameters, first, kind),
            "ld.global" => read(&self.launch.global, first, kind),
            "st.global" => return self.store(self.value(operands[0]), first, kind),
            "cvta.to.global" | "mov" => first,
            "selp" => {
                if third != 0 {
                    first
                } else {
                    second
                }
            }
            _ if family.starts_with("cvt") => convert(operation, first),
            _ => calculate(family, kind, first, second),
        };
        self.registers.insert(operands[0], result);
    }

    /// Loads or stores several registers, whose list is in braces.
    fn access_vector(&mut self, operation: &str, operands: &[&'a str]) {
        let (family, kind) = operation.rsplit_once('.').expect("a type");
        let place = operands.iter().position(|operand| operand.starts_with('[')).expect("an address");
        let names: Vec<_> = operands.iter().map(|name| name.trim_matches(['{', '}'])).collect();
        let (registers, size) = ([&names[..place], &names[place + 1..]].concat(), width(kind) as u64);
        let start = self.value(operands[place]);
        assert_eq!(start % (size * registers.len() as u64), 0, "the address of a vector");
        assert_eq!(family.rsplit_once(".v").unwrap().1.parse(), Ok(registers.len()));
        for (address, register) in (start..).step_by(width(kind)).zip(registers) {
            if family.starts_with("ld.global") {
                self.registers.insert(register, read(&self.launch.global, address, kind));
            } else {
                self.store(address, self.value(register), kind);
            }
        }
    }

    fn store(&mut self, address: u64, value: u64, kind: &str) {
        let (start, size) = (usize::try_from(address).unwrap(), width(kind));
        self.launch.global[start..start + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
}

/// The size of a type in bytes.
fn width(kind: &str) -> usize {
    kind[1..].parse::<usize>().expect("a type ends with its size") / 8
}

/// The value of a type in memory.
fn read(memory: &[u8], address: u64, kind: &str) -> u64 {
    let (start, size) = (usize::try_from(address).unwrap(), width(kind));
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(&memory[start..start + size]);
    let value = u64::from_le_bytes(bytes);
    if kind.starts_with('s') { extend(value, size) as u64 } else { value }
}

/// A signed number of `size` bytes.
fn extend(value: u64, size: usize) -> i64 {
    let unused = 64 - 8 * size;
    (value << unused) as i64 >> unused
}

/// The lowest `size` bytes of a number.
fn truncate(value: u64, size: usize) -> u64 {
    let unused = 64 - 8 * size;
    value << unused >> unused
}

fn single(value: u64) -> f32 {
    f32::from_bits(u32::try_from(value).expect("a register of 32 bits"))
}

fn convert(operation: &str, value: u64) -> u64 {
    match operation {
        "cvt.u64.u32" => value,
        "cvt.u32.u16" | "cvt.u16.u32" => truncate(value, 2),
        "cvt.f32.f16" => f16::from_bits(u16::try_from(value).unwrap()).to_f32().to_bits().into(),
        "cvt.rn.f16.f32" => f16::from_f32(single(value)).to_bits().into(),
        _ => panic!("{operation}"),
    }
}

/// An operation on two values of a type.
fn calculate(family: &str, kind: &str, a: u64, b: u64) -> u64 {
    match kind {
        "f32" => match real(family, single(a).into(), single(b).into()) {
            // One operation on two `f32` in `f64`, rounded, is the operation in `f32`.
            #[allow(clippy::cast_possible_truncation, reason = "rounds")]
            Real::Number(number) => (number as f32).to_bits().into(),
            Real::Truth(truth) => truth.into(),
        },
        "f64" => match real(family, f64::from_bits(a), f64::from_bits(b)) {
            Real::Number(number) => number.to_bits(),
            Real::Truth(truth) => truth.into(),
        },
        "pred" => a | b,
        _ => integer(family, kind, a, b),
    }
}

enum Real {
    Number(f64),
    Truth(bool),
}

fn real(family: &str, a: f64, b: f64) -> Real {
    match family {
        "add.rn" => Real::Number(a + b),
        "mul.rn" => Real::Number(a * b),
        "setp.le" => Real::Truth(a <= b),
        "setp.ge" => Real::Truth(a >= b),
        "setp.nan" => Real::Truth(a.is_nan() || b.is_nan()),
        _ => panic!("{family} of floating-point numbers"),
    }
}

fn integer(family: &str, kind: &str, a: u64, b: u64) -> u64 {
    let size = width(kind);
    let signed = |choose: fn(i64, i64) -> i64| choose(extend(a, size), extend(b, size)) as u64;
    let value = match (family, kind.starts_with('s')) {
        ("add", _) => a.wrapping_add(b),
        ("mul.lo", _) => a.wrapping_mul(b),
        ("mul.wide", _) => return truncate(a, size) * truncate(b, size),
        ("min", true) => signed(Ord::min),
        ("max", true) => signed(Ord::max),
        ("min", false) => a.min(b),
        ("max", false) => a.max(b),
        ("and", _) => a & b,
        ("or", _) => a | b,
        ("xor", _) => a ^ b,
        ("shl", _) => a << b,
        ("shr", false) => a >> b,
        ("shr", true) => (extend(a, size) >> b) as u64,
        ("setp.ge", false) => return (a >= b).into(),
        _ => panic!("{family} of {kind}"),
    };
    truncate(value, size)
}
