//! A completion borrows its poller: only one exists at a time, so none aliases another.

fn all(poller: &mut rdma::Poller) -> Vec<rdma::Completion<'_>> {
    let mut all = Vec::new();
    while let Ok(Some(completion)) = poller.poll() {
        all.push(completion);
    }
    all
}

fn main() {}
