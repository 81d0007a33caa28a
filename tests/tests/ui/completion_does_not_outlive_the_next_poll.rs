//! Polling drops the buffers of the last completion, which must therefore be out of use.

fn two(poller: &mut rdma::Poller) -> rdma::Result<()> {
    let first = poller.poll()?;
    let _second = poller.poll()?;
    if let Some(first) = first {
        println!("{}", first.token());
    }
    Ok(())
}

fn main() {}
