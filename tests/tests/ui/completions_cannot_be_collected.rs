//! Completions are seen one at a time: none is an alias of another.

fn all(poller: &mut rdma::Poller) -> Vec<rdma::Completion<'_>> {
    let mut all = Vec::new();
    while let Ok(Some(completion)) = poller.poll() {
        all.push(completion);
    }
    all
}

fn main() {}
