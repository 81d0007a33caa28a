//! One task drives a completion queue: a running driver is gone.

async fn run(driver: rdma::aio::Driver, one: rdma::aio::tokio::Readable, two: rdma::aio::tokio::Readable) {
    let first = driver.run(one);
    let second = driver.run(two);
    let _both = (first.await, second.await);
}

fn main() {}
