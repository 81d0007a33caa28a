//! A job of three containers, each of which is a host of its own: the compose file of the guide's
//! page on tests, and the commands that the page names; and a job of three pods. They run in
//! containers where Docker works and, everywhere, in three network namespaces, each in a copy of
//! the image's system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::blocks;
use super::compose::{Service, services};
use super::docker::Docker;
use super::kubernetes::pods;
use super::root::{Pod, Root};
use crate::system::{at, make, output, read, write};

pub(super) const COMPOSE: &str = "tests/vm/compose.yaml";
const PAGE: &str = "rdma/src/guide/testing.md";
/// The page with the job of Kubernetes.
const PODS: &str = "rdma/src/guide/between_hosts.md";
/// The line of the first rank when all results were right.
const RIGHT: &str = "# Out of bounds values : 0 OK";
/// The line of perftest above its result.
const MEASURED: &str = "#bytes";
/// The variable that says where a service has its key.
const KEY: &str = "RDMA_SOFT_KEY";
/// The command that runs a program in the place of a service.
const RUN: &str = "docker compose run ";

/// The job.
#[derive(Debug)]
pub(super) struct Job {
    compose: String,
    services: Vec<Service>,
    pods: Vec<Service>,
    /// The line that makes the key.
    key: String,
    /// The line that starts the services.
    up: String,
    /// The lines that run a program on two of the services: the server, and the client.
    pair: [String; 2],
}

impl Job {
    /// Reads the files of a checkout.
    pub(super) fn read(checkout: &Path) -> Result<Self, String> {
        let compose = read(&checkout.join(COMPOSE))?;
        let services = services(&compose).map_err(|error| format!("{COMPOSE}: {error}"))?;
        let console = blocks(&read(&checkout.join(PAGE))?, "console");
        let lines: Vec<_> = console.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
        let of = |start: &str| -> Vec<String> {
            lines.iter().filter(|line| line.starts_with(start)).map(|&line| line.to_owned()).collect()
        };
        let one = |start: &str| of(start).pop().ok_or_else(|| format!("{PAGE}: no line is {start:?}"));
        let pair = of(RUN).try_into();
        let pair = pair.map_err(|lines| format!("{PAGE}: {lines:?} are not a server and a client"))?;
        let pods = pods(&blocks(&read(&checkout.join(PODS))?, "yaml")).map_err(|error| format!("{PODS}: {error}"))?;
        Ok(Self { compose, services, pods, key: one("head -c 32 ")?, up: one("docker compose up")?, pair })
    }

    /// Runs it in containers.
    pub(super) fn in_docker(&self, docker: &Docker) -> Result<(), String> {
        let project = docker.project("job", &self.compose)?;
        let said = docker.type_lines(&project, &format!("{}\n{}", self.key, self.up), &self.services)?;
        contains(&said, RIGHT)?;
        let [server, client] = &self.pair;
        let said = docker.type_lines(&project, &format!("{server}\n{client}\nwait $!"), &[])?;
        contains(&said, MEASURED)
    }

    /// Runs it in namespaces, and then the job of pods; `folder` is an empty one.
    pub(super) fn in_namespaces(&self, checkout: &Path, image: &Root, folder: &Path) -> Result<(), String> {
        make(folder)?;
        output(Command::new("bash").args(["-c", &self.key]).current_dir(folder))?;
        let hosts = Hosts {
            pod: Pod::of_hosts(checkout, &folder.join("hosts"))?,
            systems: self.services.iter().map(|service| image.duplicate(&service.name)).collect::<Result<_, _>>()?,
            key: folder.join("job.key"),
        };
        for service in &self.services {
            let key = service.environment.get(KEY).map_or("", String::as_str);
            if service.volumes != [format!("./job.key:{key}:ro")] {
                return Err(format!("{COMPOSE}: {} does not have its key at {key:?}", service.name));
            }
        }
        contains(&hosts.together(&self.services)?, RIGHT)?;
        let [server, client] = &self.pair;
        let (server, words) = self.typed(server)?;
        let server = hosts.start(server, &self.services[server], &words)?;
        let (client, words) = self.typed(client)?;
        // The client of perftest does not wait for its server.
        let until = format!("until {}; do sleep 0.2; done", words.join(" "));
        let words = ["timeout", "60", "bash", "-c", &until].map(str::to_owned);
        hosts.start(client, &self.services[client], &words)?.end()?;
        contains(&server.end()?, MEASURED)?;
        contains(&hosts.together(&self.pods)?, RIGHT).map_err(|error| format!("{PODS}: {error}"))
    }

    /// The service, and the words of the program, that a line of the page runs there.
    fn typed(&self, line: &str) -> Result<(usize, Vec<String>), String> {
        let of_program = |word: &&str| !["&", "#"].contains(word);
        let mut words =
            line[RUN.len()..].split_whitespace().skip_while(|word| word.starts_with("--")).take_while(of_program);
        let name = words.next().unwrap_or_default();
        let service = self.services.iter().position(|service| service.name == name);
        let service = service.ok_or_else(|| format!("{PAGE}: {line:?} does not name a service"))?;
        Ok((service, words.map(str::to_owned).collect()))
    }
}

/// The hosts of namespaces.sh, each with a system.
struct Hosts {
    pod: Pod,
    systems: Vec<Root>,
    /// The file with the key.
    key: PathBuf,
}

impl Hosts {
    /// Runs services, each on a host, until all have ended, and returns what they printed. A name
    /// appears when its container starts: the first starts last, and late.
    fn together(&self, services: &[Service]) -> Result<String, String> {
        let local = "127.0.0.1 localhost\n".to_owned();
        let name = |(host, service): (usize, &Service)| format!("10.9.0.{} {}\n", host + 1, service.name);
        let names: String = [local.clone()].into_iter().chain(services.iter().enumerate().map(name)).collect();
        for (service, system) in services.iter().zip(&self.systems) {
            write(system.path("/etc/hosts"), &local)?;
            let key = system.path(service.environment.get(KEY).ok_or_else(|| format!("{} has no key", service.name))?);
            make(key.parent().unwrap_or(&key))?;
            // With the mode of the original.
            fs::copy(&self.key, &key).map_err(at(&key))?;
        }
        let mut running = Vec::new();
        for (host, service) in services.iter().enumerate().rev() {
            if host == 0 {
                std::thread::sleep(Duration::from_secs(1));
                self.systems.iter().try_for_each(|system| write(system.path("/etc/hosts"), &names).map(drop))?;
            }
            running.push(self.start(host, service, &service.command)?);
        }
        running.into_iter().map(Running::end).collect()
    }

    /// Starts a command as a service would, on a host.
    fn start(&self, host: usize, service: &Service, words: &[String]) -> Result<Running, String> {
        println!("{}: {}", service.name, words.join(" "));
        let mut command = self.systems[host].command_on(&self.pod, host + 1, words);
        command.envs(&service.environment).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("cannot run {:?}: {error}", command.get_program()))?;
        Ok(Running { name: service.name.clone(), child })
    }
}

/// A service that runs.
#[derive(Debug)]
struct Running {
    name: String,
    child: Child,
}

impl Running {
    /// Waits for its end. Its output is short: it does not wait for its pipe to be read.
    fn end(self) -> Result<String, String> {
        let output = self.child.wait_with_output().map_err(|error| format!("{}: {error}", self.name))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(format!("{}: {}: {}\n{}", self.name, output.status, text(&output.stderr), text(&output.stdout)))
        }
    }
}

fn contains(said: &str, wanted: &str) -> Result<(), String> {
    if said.contains(wanted) { Ok(()) } else { Err(format!("no line is {wanted:?} in: {said}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_runs_a_program_on_two_services() {
        let job = Job::read(&crate::root()).unwrap();
        assert_eq!(job.services.len(), 3);
        let [server, client] = job.pair.clone().map(|line| job.typed(&line).unwrap());
        assert_eq!((server.0, client.0), (0, 1));
        assert_eq!(server.1[..2], ["soft-rdma", "ib_write_bw"]);
        assert_eq!(client.1[..server.1.len()], server.1);
        assert_eq!(client.1[server.1.len()..], ["one"]);
        assert!(job.typed("docker compose run --rm four true").unwrap_err().contains("four"));
        assert_eq!(job.services[0].environment["RDMA_SOFT_TCP"], "auto");
    }

    #[test]
    fn the_pods_of_the_page_are_ranks_that_find_the_first() {
        let pods = Job::read(&crate::root()).unwrap().pods;
        let ranks: Vec<_> = pods.iter().map(|pod| &pod.environment["RANK"]).collect();
        assert_eq!(ranks, ["0", "1", "2"]);
        assert!(pods.iter().all(|pod| pod.environment["WORLD_SIZE"] == "3"));
        assert!(pods.iter().all(|pod| pod.environment["MASTER_ADDR"] == pods[0].name), "{pods:?}");
    }
}
