//! Polling again drops the buffers of the last completion, so that completion must be gone.

fn two(poller: &mut rdma::Poller) -> rdma::Result<()> {
    let first = poller.poll()?;
    let _second = poller.poll()?;
    if let Some(first) = first {
        println!("{}", first.token());
    }
    Ok(())
}

fn main() {}
