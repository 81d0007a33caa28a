use rdma_mem::Segment;

use super::*;
use crate::element::Reduction;
use crate::messages::Transfer;
use crate::operation::Request;
use crate::schedule::Collective;
use crate::testing::ranks;
use crate::transport::Transport;

/// Elements of rank `rank`, of any type; no result of a reduction is a NaN, whose bits may differ.
fn elements<T: Element>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| T::from_small(u16::try_from((rank * 3 + index) % 5 + 1).unwrap())).collect()
}

fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(elements).to_vec()
}

/// Memory that others may access, at an address that no element but a byte can have.
struct Misplaced(Segment, usize);

impl Misplaced {
    fn new(bytes: &[u8]) -> Self {
        let memory = Self(Segment::new(bytes.len() + 1).unwrap(), bytes.len());
        memory.bytes().copy_from(bytes.into()).unwrap();
        memory
    }

    fn bytes(&self) -> SharedSliceMut<'_> {
        self.0.bytes().slice(1..1 + self.1).unwrap()
    }

    fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.1];
        self.bytes().as_shared().copy_to(&mut bytes).unwrap();
        bytes
    }
}

/// Does every operation on typed memory, on untyped bytes and on bytes that others may access, and
/// compares the bytes of the results.
struct Compare<'a>(&'a mut Communicator);

impl ElementVisitor for Compare<'_> {
    type Output = ();

    fn visit<T: Element>(self) {
        let comm = self.0;
        let (rank, world) = (comm.rank(), comm.ranks());
        let own = elements::<T>(rank, 12);
        // Each closure does one operation on the memory it is given: an input, and an output.
        macro_rules! same {
            ($output:expr, |$comm:ident, $input:ident, $out:ident| $typed:expr) => {{
                let (input, mut typed) = (own.clone(), $output);
                let untyped = {
                    let mut aligned: Vec<T> = $output;
                    let $input = UntypedSource::new(T::TYPE, bytemuck::cast_slice(&input)).unwrap();
                    let $out = UntypedTarget::new(T::TYPE, bytemuck::cast_slice_mut(&mut aligned)).unwrap();
                    let mut $comm = comm.untyped();
                    $typed.unwrap();
                    bytes(&aligned)
                };
                // Memory that others may access, at addresses that are not aligned.
                let shared = {
                    let (given, result) = (Misplaced::new(&bytes(&input)), Misplaced::new(&bytes(&$output)));
                    let $input = UntypedSource::shared(T::TYPE, given.bytes().as_shared()).unwrap();
                    let $out = UntypedTarget::shared(T::TYPE, result.bytes()).unwrap();
                    let mut $comm = comm.untyped();
                    $typed.unwrap();
                    result.to_vec()
                };
                assert_eq!(shared, untyped, "{}", T::TYPE);
                let ($input, $out) = (&input, &mut typed);
                let $comm = &mut *comm;
                $typed.unwrap();
                assert_eq!(bytes(&typed), untyped, "{}", T::TYPE);
            }};
        }
        let zeros = |count: usize| vec![T::zeroed(); count];
        let counts = [5, 7];
        for &reduction in Reduction::ALL.iter().filter(|reduction| reduction.supports(T::TYPE)) {
            same!(zeros(12), |comm, input, output| comm.all_reduce(input, output, reduction));
            same!(own.clone(), |comm, _input, output| comm.all_reduce_in_place(output, reduction));
            same!(zeros(6), |comm, input, output| comm.reduce_scatter(input, output, reduction));
            same!(own.clone(), |comm, _input, output| comm.reduce_scatter_in_place(output, reduction));
            same!(zeros(counts[rank]), |comm, input, output| {
                comm.reduce_scatter_v(input, output, &counts, reduction)
            });
            same!(zeros(12), |comm, input, output| comm.reduce(input, output, 1, reduction));
        }
        same!(zeros(24), |comm, input, output| comm.all_gather(input, output));
        same!(zeros(24), |comm, input, output| comm.all_gather_v(input, output, &[12, 12]));
        same!(own.clone(), |comm, _input, output| comm.all_gather_in_place(output));
        same!(zeros(12), |comm, input, output| comm.all_to_all(input, output));
        same!(own.clone(), |comm, _input, output| comm.all_to_all_in_place(output));
        same!(zeros(12), |comm, input, output| comm.all_to_all_v(input, &[6, 6], output));
        same!(own.clone(), |comm, _input, output| comm.broadcast(output, 1));
        same!(zeros(24), |comm, input, output| comm.gather(input, output, 0));
        same!(zeros(24), |comm, input, output| comm.gather_v(input, output, &[12, 12], 0));
        same!(zeros(6), |comm, input, output| comm.scatter(input, output, 0));
        same!(zeros(counts[rank]), |comm, input, output| comm.scatter_v(input, output, &counts, 1));
        same!(zeros(12), |comm, input, output| if rank == 0 { comm.send(input, 1) } else { comm.recv(output, 0) });
        same!(zeros(12), |comm, input, output| {
            if rank == 1 { comm.send(input, 0) } else { comm.recv_any(output).map(|from| assert_eq!(from, 1)) }
        });

        let factor = [T::from_small(3)];
        let (mut typed, mut untyped) = (own.clone(), own.clone());
        comm.all_reduce_scaled(&mut typed, factor[0], Reduction::Sum).unwrap();
        comm.untyped().all_reduce_scaled(&mut untyped, &factor, Reduction::Sum).unwrap();
        assert_eq!(typed, untyped);
        let shared = Misplaced::new(&bytes(&own));
        let memory = UntypedTarget::shared(T::TYPE, shared.bytes()).unwrap();
        comm.untyped().all_reduce_scaled(memory, &factor, Reduction::Sum).unwrap();
        assert_eq!(shared.to_vec(), bytes(&typed));

        // Some of the ranks may have typed memory.
        let (mut came, peer) = (zeros(12), world - 1 - rank);
        if rank == 0 {
            let sends = [(UntypedSource::from(&own), peer)];
            comm.untyped().exchange(sends, [(UntypedTarget::from(&mut came), peer)]).unwrap();
        } else {
            comm.exchange(&mut [Transfer::send(&own, peer), Transfer::recv(&mut came, peer)]).unwrap();
        }
        assert_eq!(came, elements::<T>(peer, 12));

        let tensor = comm.allocate_untyped(T::TYPE, 12).unwrap();
        assert_eq!((tensor.data_type(), tensor.count(), tensor.typed::<T>().is_some()), (T::TYPE, 12, true));
        tensor.write(0, bytemuck::cast_slice(&own)).unwrap();
        comm.untyped().all_reduce_in_place(&tensor, Reduction::Sum).unwrap();
        let request = Request { in_place: true, ..Request::new(Collective::AllReduce, 6) };
        let operation = comm.untyped().prepare(T::TYPE, request).unwrap();
        comm.untyped().perform(&operation, &tensor, &tensor).unwrap();
        let mut sums = zeros(12);
        tensor.read(0, bytemuck::cast_slice_mut(&mut sums)).unwrap();
        let (mut one, mut two) = (own.clone(), elements::<T>(peer, 12));
        if rank == 1 {
            std::mem::swap(&mut one, &mut two);
        }
        T::reduce(Reduction::Sum, &mut one, &two);
        let first = one.clone();
        T::reduce(Reduction::Sum, &mut one[..6], &first);
        assert_eq!(sums, one);
        assert!(tensor.read(7, &mut vec![0; 6 * T::TYPE.size()]).is_err());
        assert!(tensor.write(usize::MAX, &[0; 8]).is_err());
    }
}

#[test]
fn untyped_operations_do_what_typed_ones_do() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, |mut comm, _| {
            for &data_type in DataType::ALL {
                data_type.visit(Compare(&mut comm));
            }
        });
    }
}

#[test]
fn memory_that_is_no_elements_of_its_type_is_refused() {
    let mut aligned = [0_u64; 4];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut aligned);
    for &data_type in DataType::ALL.iter().filter(|data_type| data_type.size() > 1) {
        let size = data_type.size();
        assert_eq!(UntypedSource::new(data_type, bytes).unwrap().len(), 32 / size);
        assert!(UntypedSource::new(data_type, &bytes[1..1]).unwrap().is_empty());
        assert!(UntypedTarget::new(data_type, &mut bytes[1..1]).unwrap().is_empty());
        for refused in [
            UntypedSource::new(data_type, &bytes[..size + 1]).map(drop),
            UntypedSource::new(data_type, &bytes[1..=size]).map(drop),
            UntypedTarget::new(data_type, &mut bytes[..size + 1]).map(drop),
            UntypedTarget::new(data_type, &mut bytes[1..=size]).map(drop),
            UntypedSource::shared(data_type, bytes[..size + 1].as_ref().into()).map(drop),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(data_type.name()), "{error}");
        }
    }
}

#[test]
fn memory_of_several_types_is_refused() {
    ranks(2, Transport::Auto, |mut comm, _| {
        let (mut words, tensor) = ([0_u32; 4], comm.allocate_untyped(DataType::F64, 4).unwrap());
        let refused = |result: Result<(), Error>| result.unwrap_err().to_string();
        let text = "an operation on f64 is given memory of u32";
        assert_eq!(refused(comm.untyped().all_gather(&tensor, &mut words)), text);
        let exchange = comm.untyped().exchange([((&tensor).into(), 0)], [((&mut words).into(), 0)]);
        assert_eq!(refused(exchange), text);
        assert_eq!(refused(comm.untyped().all_reduce_scaled(&tensor, &words[..1], Reduction::Sum)), text);
        let factor = "a factor of 2 elements: give one, in a slice";
        assert_eq!(refused(comm.untyped().all_reduce_scaled(&tensor, &[1.0, 2.0], Reduction::Sum)), factor);
        assert!(tensor.typed::<u32>().is_none() && tensor.source(4).typed::<u32>().is_err());
        let other = comm.allocate_untyped(DataType::U32, 4).unwrap();
        let operation = comm.untyped().prepare(DataType::F64, Request::new(Collective::AllReduce, 4)).unwrap();
        assert_eq!(refused(comm.untyped().perform(&operation, &tensor, &other)), text);
        assert_eq!(
            refused(comm.untyped().perform(&operation, &other, &other)),
            "the operation was prepared for other tensors"
        );
    });
}

/// Longer than the tensors through which it is copied.
#[test]
fn memory_that_others_may_access_is_copied_by_pieces() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, |mut comm, _| {
            let (rank, peer) = (comm.rank(), 1 - comm.rank());
            let own: Vec<u32> = (0..10_001).map(|index| index * 3 + u32::try_from(rank).unwrap()).collect();
            let shared = Misplaced::new(bytemuck::cast_slice(&own));
            let memory = || UntypedTarget::shared(DataType::U32, shared.bytes()).unwrap();
            comm.untyped().all_reduce_in_place(memory(), Reduction::Sum).unwrap();
            let sums: Vec<u32> = (0..10_001).map(|index| index * 6 + 1).collect();
            assert_eq!(shared.to_vec(), bytes(&sums));
            let came = Misplaced::new(&vec![0; 40_004]);
            let source = UntypedSource::shared(DataType::U32, shared.bytes().as_shared()).unwrap();
            let target = UntypedTarget::shared(DataType::U32, came.bytes()).unwrap();
            comm.untyped().exchange([(source, peer)], [(target, peer)]).unwrap();
            assert_eq!(came.to_vec(), bytes(&sums));
        });
    }
}
