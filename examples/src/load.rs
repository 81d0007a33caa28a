//! Load on a service: clients that send by turns or at a given rate, and the latencies they meet.

use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::LocalSet;

use crate::statistics::Summary;
use crate::{Failure, cli};

/// Time before a request at which a client stops sleeping: the runtime's clock counts milliseconds.
const AWAKE: Duration = Duration::from_millis(2);

/// The load's size and pace.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = cli::WHAT)]
pub struct LoadOptions {
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value = "5", value_parser = cli::seconds)]
    pub seconds: Duration,
    /// Clients, each with a connection of its own
    #[arg(long, value_name = "N", default_value = "16", value_parser = clients)]
    pub clients: u16,
    /// Requests per second of all clients together, sent at random times whether or not earlier
    /// ones were answered late (open loop); without it each client sends when it has the answer to
    /// its last request (closed loop)
    #[arg(long, value_name = "N", value_parser = cli::count)]
    pub rate: Option<usize>,
}

fn clients(text: &str) -> Result<u16, String> {
    cli::number_in(text, 1..=900)
}

impl LoadOptions {
    /// The loop, as text for the report.
    #[must_use]
    pub fn pace(&self) -> String {
        self.rate.map_or_else(|| "closed loop".to_owned(), |rate| format!("open loop of {rate} requests/s"))
    }
}

/// A client under load.
pub trait LoadClient: Sized + 'static {
    /// Does one request, and checks its answer.
    fn request(&mut self, random: &mut Random) -> impl Future<Output = Result<(), Failure>>;
}

/// Lets all clients send for `time`, and adds their latencies in microseconds to `samples`. Returns
/// the clients.
///
/// # Errors
/// The failure of the first client that fails.
pub async fn drive<C: LoadClient>(
    clients: Vec<C>,
    load: &LoadOptions,
    time: Duration,
    samples: &mut Samples,
) -> Result<Vec<C>, Failure> {
    let local = LocalSet::new();
    let start = Instant::now();
    let interval = load.rate.map(|rate| clients.len() as f64 / rate as f64);
    let next_seed = samples.latencies.len() as u64;
    let run = Rc::new(move |mut client: C, index: u64| async move {
        let mut pace = Pace { interval, next: start, end: start + time, random: Random::new(next_seed + index) };
        let mut latencies = Vec::new();
        while let Some(from) = pace.next().await {
            client.request(&mut pace.random).await?;
            latencies.push(from.elapsed().as_secs_f64() * 1e6);
        }
        Ok::<_, Failure>((client, latencies))
    });
    let tasks: Vec<_> = (0..).zip(clients).map(|(index, client)| local.spawn_local(run(client, index))).collect();
    let join = async {
        let mut clients = Vec::new();
        for task in tasks {
            let (client, latencies) = task.await.map_err(|error| Failure::new(error.to_string()))??;
            samples.latencies.extend(latencies);
            clients.push(client);
        }
        Ok(clients)
    };
    let clients = local.run_until(join).await;
    samples.seconds += start.elapsed().as_secs_f64();
    clients
}

/// The times at which a client sends.
struct Pace {
    /// Mean seconds between two requests of an open loop.
    interval: Option<f64>,
    next: Instant,
    end: Instant,
    random: Random,
}

impl Pace {
    /// Waits for the time of the next request. Returns the time at which the request was due, from
    /// which its latency counts; `None` at the end.
    async fn next(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let Some(interval) = self.interval else { return Some(now).filter(|&now| now < self.end) };
        // Exponential times between requests, as of many independent users.
        self.next += Duration::from_secs_f64(-interval * (1.0 - self.random.fraction()).ln());
        if self.next >= self.end || now >= self.end {
            return None;
        }
        if let Some(early) = self.next.checked_sub(AWAKE).filter(|&early| early > now) {
            tokio::time::sleep_until(early.into()).await;
        }
        while Instant::now() < self.next {
            tokio::task::yield_now().await;
        }
        Some(self.next)
    }
}

/// The latencies of requests.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// In microseconds.
    latencies: Vec<f64>,
    seconds: f64,
}

/// Requests per second, and percentiles of their latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LoadRow {
    /// Requests that were answered.
    pub requests: usize,
    /// Requests per second.
    pub rate: f64,
    /// Median.
    pub p50: f64,
    /// 99 % of the latencies are at or below this value.
    pub p99: f64,
    /// 99.9 % of the latencies are at or below this value.
    #[serde(rename = "p99.9")]
    pub p999: f64,
    /// The highest latency.
    pub max: f64,
}

impl LoadRow {
    /// The heads of the columns.
    pub const HEAD: &str = "  requests/s   p50 (us)   p99 (us) p99.9 (us)   max (us)";

    /// Summarises samples.
    #[must_use]
    pub fn of(samples: &mut Samples) -> Self {
        let Summary { max, median: p50, p99, p999, .. } = Summary::of(&mut samples.latencies);
        let requests = samples.latencies.len();
        let rate = if samples.seconds > 0.0 { requests as f64 / samples.seconds } else { 0.0 };
        Self { requests, rate, p50, p99, p999, max }
    }

    /// The row as text.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { rate, p50, p99, p999, max, .. } = self;
        format!("{rate:>12.0} {p50:>10.1} {p99:>10.1} {p999:>10.1} {max:>10.1}")
    }
}

/// Pseudo-random numbers: SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to less than 1.
    pub fn fraction(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A Zipf distribution: rank `i` of `n` has a probability proportional to `1 / (i + 1)^exponent`.
///
/// Ranks are drawn by the approximation of Gray et al., "Quickly generating billion-record
/// synthetic databases" (1994), as YCSB does.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    n: f64,
    exponent: f64,
    /// Sum of all ranks' weights.
    total: f64,
    eta: f64,
}

impl Zipf {
    /// The distribution of `n` ranks, at least 2; the exponent is at least 0, for equal
    /// probabilities, and less than 1.
    #[must_use]
    pub fn new(n: usize, exponent: f64) -> Self {
        let weight = |rank: f64| rank.powf(-exponent);
        let total = (1..=n).map(|rank| weight(rank as f64)).sum::<f64>();
        let n = n as f64;
        let eta = (1.0 - (2.0 / n).powf(1.0 - exponent)) / (1.0 - (1.0 + weight(2.0)) / total);
        Self { n, exponent, total, eta }
    }

    /// Draws a rank.
    #[expect(clippy::cast_possible_truncation, reason = "the rank is less than n")]
    pub fn rank(&self, random: &mut Random) -> usize {
        let fraction = random.fraction();
        let scaled = fraction * self.total;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.exponent) {
            return 1;
        }
        let rank = self.n * (self.eta * fraction - self.eta + 1.0).powf(1.0 / (1.0 - self.exponent));
        rank.clamp(0.0, self.n - 1.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_the_probabilities_of_the_distribution() {
        const DRAWS: usize = 200_000;
        for exponent in [0.0, 0.5, 0.99] {
            let (zipf, mut random) = (Zipf::new(100, exponent), Random::new(1));
            let mut counts = [0; 100];
            for _ in 0..DRAWS {
                counts[zipf.rank(&mut random)] += 1;
            }
            let share = |ranks: std::ops::Range<usize>| counts[ranks].iter().sum::<usize>() as f64 / DRAWS as f64;
            let weight =
                |ranks: std::ops::Range<usize>| ranks.map(|rank| ((rank + 1) as f64).powf(-exponent)).sum::<f64>();
            for ranks in [0..1, 0..10, 50..100] {
                let expected = weight(ranks.clone()) / weight(0..100);
                let found = share(ranks.clone());
                assert!((found - expected).abs() < 0.03, "{exponent}, {ranks:?}: {found} is not {expected}");
            }
        }
    }

    #[test]
    fn an_open_loop_counts_latencies_from_the_time_at_which_requests_were_due() {
        /// A client whose first request takes half of the time.
        struct Slow(Option<Duration>);

        impl LoadClient for Slow {
            async fn request(&mut self, _: &mut Random) -> Result<(), Failure> {
                if let Some(time) = self.0.take() {
                    tokio::time::sleep(time).await;
                }
                Ok(())
            }
        }

        let time = Duration::from_millis(400);
        let load = LoadOptions { seconds: time, clients: 1, rate: Some(1000) };
        let (mut samples, slow) = (Samples::default(), Slow(Some(time / 2)));
        crate::service::runtime().unwrap().block_on(drive(vec![slow], &load, time, &mut samples)).unwrap();
        // Requests that were due during the long one waited for it.
        let row = LoadRow::of(&mut samples);
        assert!(row.requests < 600 && row.p99 > 100_000.0, "{row:?}");
        let late = samples.latencies.iter().filter(|&&latency| latency > 50_000.0).count();
        assert!(late > 20, "{late} were late");
    }
}
