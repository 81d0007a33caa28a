//! `cargo xtask containers`: runs the commands of the files that users of hosted jobs and images
//! take, in Debian systems that have nothing else: the `RUN` lines of the Dockerfile, the commands
//! of the compose file, the `run` lines of the GitHub action and of the workflow, and those of the
//! guide's page.
//!
//! A system is a folder that debootstrap fills, and a command runs there by chroot, in mount and
//! process namespaces of its own. No image is pulled, and no service of the files' systems is used.
//!
//! The Dockerfile's system is also an image, `FROM scratch`, whose containers Docker runs as the
//! compose files say, if it is installed.

mod compose;
mod docker;
mod dockerfile;
mod job;
mod kubernetes;
mod root;
mod workflow;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::lint;
use crate::system::{make, output, read, remove};
use compose::{Service, services};
use docker::Docker;
use dockerfile::{Instruction, instructions};
use job::Job;
use root::{Machine, Pod, Root};
use workflow::{Step, steps};

const DOCKERFILE: &str = "Dockerfile";
const COMPOSE: &str = "compose.yaml";
const ACTION: &str = "action.yml";
const WORKFLOW: &str = ".github/workflows/ci.yml";
const PAGE: &str = "rdma/src/guide/your_ci.md";
/// The image for which the empty system stands.
const IMAGE: &str = "debian:trixie-slim";
/// What a hosted runner has beyond an empty system, as far as the lines use it.
const OF_RUNNER: &str = "apt-get update -qq && apt-get install -qq --yes --no-install-recommends \
    ca-certificates cargo gcc libc6-dev sudo";
/// The lines of the workflow that run all of the project's own CI, in an image of Rust.
const WHOLE_CI: [&str; 3] = [
    "rustup component add rustfmt clippy",
    "git config --global --add safe.directory \"$GITHUB_WORKSPACE\"",
    "bash .ci/run",
];

/// Runs the command.
pub(crate) fn run() -> Result<(), String> {
    let root = crate::root();
    let machine = Machine::new(&root.join("target/xtask/containers"))?;
    let page = read(&root.join(PAGE))?;
    let of = |file: &'static str| move |error: String| format!("{file}: {error}");
    let image = build(&machine, &root, &read(&root.join(DOCKERFILE))?).map_err(of(DOCKERFILE))?;
    let two = read(&root.join(COMPOSE))?;
    compose(&services(&two)?, &image).map_err(of(COMPOSE))?;
    jobs(&root, &image, &two)?;
    build(&machine, &root, &blocks(&page, "dockerfile")).map_err(of(PAGE))?;
    let runner = machine.system("runner")?;
    runner.run(&["sh", "-c"], OF_RUNNER, "/")?;
    copy_checkout(&root, &runner, "/src")?;
    let action = steps(&read(&root.join(ACTION))?)?;
    let workflow = read(&root.join(WORKFLOW))?;
    if let Some(line) = WHOLE_CI.iter().find(|line| !workflow.contains(**line)) {
        return Err(format!("{WORKFLOW}: no line is {line:?}, which is left out"));
    }
    for (file, text) in [(WORKFLOW, workflow), (PAGE, blocks(&page, "yaml"))] {
        follow(&runner, &steps(&text)?, &action).map_err(of(file))?;
    }
    Ok(())
}

/// Runs a job over three containers and, in Docker, the two of the compose file `two`.
fn jobs(checkout: &Path, image: &Root, two: &str) -> Result<(), String> {
    let of = |file: &'static str| move |error: String| format!("{file}: {error}");
    let job = Job::read(checkout)?;
    let folder = checkout.join("target/xtask/containers");
    remove(&folder.join("job"))?;
    job.in_namespaces(checkout, image, &folder.join("job")).map_err(of(job::COMPOSE))?;
    match Docker::find(&folder.join("docker"))? {
        Ok(docker) => {
            docker.image(image)?;
            job.in_docker(&docker).map_err(of(job::COMPOSE))?;
            let project = docker.project("two", two)?;
            docker.type_lines(&project, &commands(two), &[]).map_err(of(COMPOSE))?;
        }
        Err(why) => println!("SKIPPED: Docker's own containers: {why}"),
    }
    Ok(())
}

/// Starts the services of a compose file, each in a system of its own, and waits for all but the
/// first, which holds the namespaces of the others.
fn compose(services: &[Service], image: &Root) -> Result<(), String> {
    let (host, others) = services.split_first().ok_or("there is no service")?;
    if host.host()?.is_some() {
        return Err(format!("{}, the first service, has no namespaces of its own", host.name));
    }
    let pod = Pod::new()?;
    let mut running = Vec::new();
    for service in others {
        if service.host()? != Some(&host.name) {
            return Err(format!("{} is not in the namespaces of {}", service.name, host.name));
        }
        let mut command = image.duplicate(&service.name)?.command_in(&pod, &service.command);
        println!("{}", service.command.join(" "));
        let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        running.push((service, started.map_err(|error| format!("cannot run {:?}: {error}", command.get_program()))?));
    }
    // Their output is short: none of them waits for its pipe to be read.
    for (service, child) in running {
        let output = child.wait_with_output().map_err(|error| format!("{}: {error}", service.name))?;
        if !output.status.success() {
            return Err(format!("{}: {}", service.name, String::from_utf8_lossy(&output.stderr).trim()));
        }
    }
    Ok(())
}

/// The commands that the head of a compose file names.
fn commands(file: &str) -> String {
    let head: Vec<_> = file.lines().map_while(|line| line.strip_prefix('#')).collect();
    let quoted = head.join(" ");
    quoted.split('`').skip(1).step_by(2).map(|command| format!("{command}\n")).collect()
}

/// The contents of a page's blocks of one language.
fn blocks(page: &str, language: &str) -> String {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Follows a Dockerfile. Returns the last image, a system in which its command has run.
fn build(machine: &Machine, checkout: &Path, text: &str) -> Result<Root, String> {
    let mut images: Vec<(Option<String>, Root)> = Vec::new();
    let mut folder = "/".to_owned();
    for instruction in instructions(text)? {
        if let Instruction::From { image, name } = instruction {
            if image != IMAGE {
                return Err(format!("FROM {image}: only {IMAGE} can be had"));
            }
            images.push((name, machine.system(&format!("image{}", images.len()))?));
            "/".clone_into(&mut folder);
            continue;
        }
        let (_, system) = images.last().ok_or("the first instruction is not FROM")?;
        match instruction {
            Instruction::From { .. } => {}
            Instruction::Run(line) => system.run(&["sh", "-c"], &line, &folder)?,
            Instruction::WorkDir(path) => folder = join(&folder, &path),
            Instruction::CopyContext { to } => copy_checkout(checkout, system, &join(&folder, &to))?,
            Instruction::CopyFrom { image, from, to } => {
                let source = images.iter().find(|(name, _)| name.as_ref() == Some(&image));
                let (_, source) = source.ok_or_else(|| format!("COPY --from={image}: there is no such image"))?;
                system.copy(&source.path(&from), &join(&folder, &to))?;
            }
            Instruction::Command(words) => {
                let (program, arguments) = words.split_first().ok_or("CMD is empty")?;
                system.exec(program, arguments, &folder)?;
            }
        }
    }
    images.pop().map(|(_, system)| system).ok_or_else(|| "there is no instruction".to_owned())
}

/// A path of an image, seen from a folder in it.
fn join(folder: &str, path: &str) -> String {
    let path: PathBuf = Path::new(folder).join(path).components().collect();
    path.to_string_lossy().into_owned()
}

/// Copies the files that git does not ignore into a system, with their times: cargo builds again
/// what is newer than its result.
fn copy_checkout(checkout: &Path, system: &Root, to: &str) -> Result<(), String> {
    let to = system.path(to);
    make(&to)?;
    // A file that is deleted but not committed yet is listed too.
    let files = lint::files(checkout)?.into_iter().filter(|file| checkout.join(file).is_file());
    let mut copy = Command::new("cp");
    copy.current_dir(checkout).args(["--parents", "--preserve=mode,timestamps", "--target-directory"]);
    output(copy.arg(&to).args(files)).map(drop)
}

/// Runs the steps of jobs, and for this repository's action the steps of that.
fn follow(runner: &Root, steps: &[Step], action: &[Step]) -> Result<(), String> {
    for step in steps {
        match step {
            Step::Run(line) if WHOLE_CI.contains(&line.as_str()) => {}
            Step::Run(line) => runner.run(&["bash", "-eo", "pipefail", "-c"], line, "/src")?,
            Step::Uses(name) if name == "actions/checkout" => {}
            Step::Uses(name) if name == "./" || name == "OWNER/rdma" => follow(runner, action, &[])?,
            Step::Uses(name) => return Err(format!("the action {name} cannot be had")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_understood() {
        let root = crate::root();
        let page = read(&root.join(PAGE)).unwrap();
        for text in [read(&root.join(DOCKERFILE)).unwrap(), blocks(&page, "dockerfile")] {
            let parsed = instructions(&text).unwrap();
            assert!(parsed.iter().filter(|one| matches!(one, Instruction::Run(_))).count() >= 3, "{parsed:?}");
        }
        for text in [read(&root.join(WORKFLOW)).unwrap(), blocks(&page, "yaml")] {
            let parsed = steps(&text).unwrap();
            assert!(parsed.iter().filter(|step| matches!(step, Step::Run(_))).count() >= 3, "{parsed:?}");
            let uses = |step: &Step| matches!(step, Step::Uses(name) if name == "./" || name == "OWNER/rdma");
            assert!(parsed.iter().any(uses), "{parsed:?}");
        }
        assert_eq!(steps(&read(&root.join(ACTION)).unwrap()).unwrap().len(), 3);
        let services = services(&read(&root.join(COMPOSE)).unwrap()).unwrap();
        let lines = commands(&read(&root.join(COMPOSE)).unwrap());
        assert_eq!(lines, "docker compose run --rm client\ndocker compose down\n");
        let [host, others @ ..] = &services[..] else { panic!("there is no service") };
        assert_eq!((others.len(), host.host()), (2, Ok(None)));
        assert!(others.iter().all(|service| service.host() == Ok(Some(&host.name))), "{services:?}");
    }
}
