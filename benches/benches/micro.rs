//! Small parts alone: the copies that everything which touches exposed memory goes through, and the
//! loop that adds.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use rdma_collectives::{Element, Reduction};

const SIZES: [usize; 6] = [8, 64, 256, 4 << 10, 64 << 10, 1 << 20];

fn copies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy");
    group.sample_size(20).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
    for size in SIZES {
        let source = vec![0x5a_u8; size];
        let mut sink = vec![0_u8; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("memcpy", size), |bencher| {
            bencher.iter(|| black_box(&mut sink[..]).copy_from_slice(black_box(&source)));
        });
        group.bench_function(BenchmarkId::new("rdma_mem::copy", size), |bencher| {
            bencher.iter(|| {
                let (sink, source, len) = black_box((sink.as_mut_ptr(), source.as_ptr(), size));
                // SAFETY: copy requires two ranges of `len` bytes that do not overlap and that
                // nothing else uses: two vectors of `size` bytes.
                unsafe { rdma_mem::copy(sink, source, len) };
            });
        });
        group.bench_function(BenchmarkId::new("rdma_mem::copy_ordered", size), |bencher| {
            bencher.iter(|| {
                let (sink, source, len) = black_box((sink.as_mut_ptr(), source.as_ptr(), size));
                // SAFETY: copy_ordered requires two ranges of `len` bytes that do not overlap and
                // that nothing else uses: two vectors of `size` bytes.
                unsafe { rdma_mem::copy_ordered(sink, source, len) };
            });
        });
    }
    group.finish();
}

fn sums(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sum_f32");
    group.sample_size(20).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
    for size in [1 << 10, 64 << 10, 1 << 20] {
        let more = vec![1.0_f32; size / 4];
        let mut sums = vec![0.0_f32; size / 4];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("accumulate", size), |bencher| {
            bencher.iter(|| f32::reduce(Reduction::Sum, black_box(&mut sums), black_box(&more)));
        });
        // One element at a time: the cost of the loop without vector instructions.
        group.bench_function(BenchmarkId::new("one by one", size), |bencher| {
            bencher.iter(|| {
                for (sum, more) in black_box(&mut sums).iter_mut().zip(black_box(&more)) {
                    *sum = black_box(*sum + more);
                }
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    copies(&mut criterion);
    sums(&mut criterion);
    criterion.final_summary();
}
