//! The type of elements as a value, for options, files and messages.

use rdma_mem::Scalar;

use crate::named::named;

named! {
    /// A type of elements that is known at run time. It has Rust's name, and nccl-tests' name is
    /// taken for it too. [`visit`](Self::visit) leads to generic code.
    pub enum DataType {
        /// A floating-point number of 32 bits (`f32`).
        F32 = "f32" | "float",
        /// A floating-point number of 64 bits (`f64`).
        F64 = "f64" | "double",
        /// A floating-point number of 16 bits (`half::f16`).
        F16 = "f16" | "half",
        /// The upper half of an `f32` (`half::bf16`).
        Bf16 = "bf16" | "bfloat16",
        /// A signed integer of 8 bits (`i8`).
        I8 = "i8" | "int8",
        /// An unsigned integer of 8 bits (`u8`).
        U8 = "u8" | "uint8",
        /// A signed integer of 32 bits (`i32`).
        I32 = "i32" | "int32",
        /// An unsigned integer of 32 bits (`u32`).
        U32 = "u32" | "uint32",
        /// A signed integer of 64 bits (`i64`).
        I64 = "i64" | "int64",
        /// An unsigned integer of 64 bits (`u64`).
        U64 = "u64" | "uint64",
    }
}

impl DataType {
    /// nccl-tests' name of the type: `float` for `f32`.
    #[must_use]
    pub const fn nccl_name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F64 => "double",
            Self::F16 => "half",
            Self::Bf16 => "bfloat16",
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::U32 => "uint32",
            Self::I64 => "int64",
            Self::U64 => "uint64",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        self.scalar().size()
    }

    /// Whether the type is one of integers.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        self.scalar().is_integer()
    }

    /// The type, for [`rdma_mem::reduce()`].
    #[must_use]
    pub const fn scalar(self) -> Scalar {
        match self {
            Self::F32 => Scalar::F32,
            Self::F64 => Scalar::F64,
            Self::F16 => Scalar::F16,
            Self::Bf16 => Scalar::Bf16,
            Self::I8 => Scalar::I8,
            Self::U8 => Scalar::U8,
            Self::I32 => Scalar::I32,
            Self::U32 => Scalar::U32,
            Self::I64 => Scalar::I64,
            Self::U64 => Scalar::U64,
        }
    }
}

/// Runs code with `$type` as the type that a data type names.
macro_rules! by_type {
    ($data_type:expr, $type:ident => $code:expr) => {
        $crate::element::by_type!(@ $data_type, $type, $code,
            F32 f32, F64 f64, F16 half::f16, Bf16 half::bf16, I8 i8, U8 u8, I32 i32, U32 u32, I64 i64, U64 u64)
    };
    (@ $data_type:expr, $type:ident, $code:expr, $($variant:ident $named:ty),+) => {
        match $data_type {
            $($crate::DataType::$variant => {
                type $type = $named;
                $code
            })+
        }
    };
}

pub(crate) use by_type;
