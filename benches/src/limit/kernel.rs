//! Sums of vectors, by the vector instructions of the processor.

/// The way in which results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// Into the caches.
    Cached,
    /// Past the caches.
    Streaming,
}

/// Stores the sum of the inputs, of `count` numbers each, in all outputs.
///
/// # Safety
///
/// 1. Every input is valid for reads and every output for writes of `count` numbers, which no other
///    process or thread writes meanwhile, and an output no other one reads.
/// 2. Each output is an input or disjoint from all.
pub(super) unsafe fn sum(outputs: &[*mut f32], inputs: &[*const f32], count: usize, stores: Stores) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        let is_aligned = outputs.iter().all(|output| output.addr() % 32 == 0);
        if stores == Stores::Streaming && is_aligned {
            // SAFETY: requires 1 and 2, which are this function's, AVX2, just detected, and aligned
            // outputs, just checked.
            unsafe { x86_64::sum::<true>(outputs, inputs, count) };
        } else {
            // SAFETY: requires 1 and 2, which are this function's, and AVX2, just detected.
            unsafe { x86_64::sum::<false>(outputs, inputs, count) };
        }
        return;
    }
    let _ = stores;
    // SAFETY: requires 1 and 2, which are this function's.
    unsafe { sum_from(0, outputs, inputs, count) };
}

/// The sums from index `start` on.
///
/// # Safety
///
/// As for [`sum`].
unsafe fn sum_from(start: usize, outputs: &[*mut f32], inputs: &[*const f32], count: usize) {
    for index in start..count {
        // SAFETY: read requires a readable number: `index` is below `count` (1).
        let total = inputs.iter().map(|input| unsafe { input.wrapping_add(index).read() }).sum();
        for output in outputs {
            // SAFETY: write requires a writable number: `index` is below `count` (1).
            unsafe { output.wrapping_add(index).write(total) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::arch::x86_64::{
        __m256, _mm_sfence, _mm256_add_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps, _mm256_stream_ps,
    };

    /// Numbers of a vector, and vectors of a step.
    const LANES: usize = 8;
    const VECTORS: usize = 4;

    /// # Safety
    ///
    /// As for [`super::sum`]; the processor has AVX2; with `STREAM`, outputs are aligned to 32.
    #[target_feature(enable = "avx2")]
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "loads and stores of one step")]
    #[allow(unused_unsafe, reason = "since Rust 1.87, intrinsics without pointers are safe here")]
    pub(super) unsafe fn sum<const STREAM: bool>(outputs: &[*mut f32], inputs: &[*const f32], count: usize) {
        const STEP: usize = LANES * VECTORS;
        let Some((first, more)) = inputs.split_first() else { return };
        let mut at = 0;
        while at + STEP <= count {
            // SAFETY: requires AVX, which this function has.
            let mut totals: [__m256; VECTORS] = [unsafe { _mm256_setzero_ps() }; VECTORS];
            for (lane, total) in totals.iter_mut().enumerate() {
                // SAFETY: the vector lies in the `count` numbers (1).
                *total = unsafe { _mm256_loadu_ps(first.add(at + lane * LANES)) };
            }
            for input in more {
                for (lane, total) in totals.iter_mut().enumerate() {
                    // SAFETY: the vector lies in the `count` numbers (1).
                    let vector = unsafe { _mm256_loadu_ps(input.add(at + lane * LANES)) };
                    // SAFETY: requires AVX, which this function has.
                    *total = unsafe { _mm256_add_ps(*total, vector) };
                }
            }
            for output in outputs {
                for (lane, &total) in totals.iter().enumerate() {
                    // SAFETY: the vector lies in the `count` numbers (1), aligned if need be.
                    unsafe {
                        let to = output.add(at + lane * LANES);
                        if STREAM { _mm256_stream_ps(to, total) } else { _mm256_storeu_ps(to, total) }
                    }
                }
            }
            at += STEP;
        }
        // SAFETY: requires conditions 1 and 2, which are this function's.
        unsafe { super::sum_from(at, outputs, inputs, count) };
        if STREAM {
            // SAFETY: requires SSE, which every x86_64 processor has.
            unsafe { _mm_sfence() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_every_length_reach_all_outputs() {
        for count in [1, 7, 32, 33, 100] {
            for stores in [Stores::Cached, Stores::Streaming] {
                let (a, b) = (vec![1.5_f32; count], vec![2.0_f32; count]);
                let mut results = [vec![0.0_f32; count], vec![0.0_f32; count]];
                let outputs = results.each_mut().map(|result| result.as_mut_ptr());
                // SAFETY: the vectors have `count` numbers each, and are different ones (1, 2).
                unsafe { sum(&outputs, &[a.as_ptr(), b.as_ptr()], count, stores) };
                assert!(results.iter().flatten().all(|&number| number == 3.5));
            }
        }
    }
}
