//! MPIs, each with the program `mpi/collectives.c`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::affinity;
use crate::point::Point;
use crate::programs::run;

/// The environment variable with the folder of the virtual environments.
const FOLDER: &str = "MPI_VENVS";

/// The folder of Debian's libraries.
const DEBIAN: &str = "/usr/lib/x86_64-linux-gnu";

/// Settings that keep glibc from giving the memory of a large temporary back after each collective.
fn keep_memory() -> Vec<(&'static str, String)> {
    let thresholds = [("MALLOC_MMAP_THRESHOLD_", "2147483648"), ("MALLOC_TRIM_THRESHOLD_", "4294967295")];
    thresholds.map(|(name, value)| (name, value.to_owned())).to_vec()
}

/// The family of an MPI, which decides its launcher's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    OpenMpi,
    Mpich,
    Intel,
}

/// An MPI with some settings.
#[derive(Clone, Debug)]
pub struct Mpi {
    name: &'static str,
    family: Family,
    launcher: PathBuf,
    executable: PathBuf,
    settings: &'static [&'static str],
    environment: Vec<(&'static str, String)>,
}

impl Mpi {
    /// Every MPI of the comparison, or a line that says why it is absent. Programs are compiled
    /// into `scratch`.
    #[must_use]
    pub fn all(scratch: &Path) -> Vec<Result<Self, String>> {
        let venvs = std::env::var_os(FOLDER).map(PathBuf::from);
        let venv = |name: &str| {
            let venv = venvs.as_ref().map(|venvs| venvs.join(name)).filter(|venv| venv.is_dir());
            venv.ok_or_else(|| format!("{FOLDER} names no folder with a virtual environment `{name}`"))
        };
        let new = || venv("openmpi").and_then(|venv| Self::in_venv("Open MPI 5", Family::OpenMpi, &venv, scratch));
        let vader_copies = &["--mca", "btl_vader_single_copy_mechanism", "none"];
        vec![
            Self::of_debian(scratch, new().ok().as_ref()),
            Self::of_debian(scratch, new().ok().as_ref()).map(|mpi| mpi.tuned("Open MPI 4.1, copies", vader_copies)),
            new(),
            new().map(|mpi| mpi.tuned("Open MPI 5, copies", &["--mca", "smsc", "^cma"])),
            venv("mpich").and_then(|venv| Self::in_venv("MPICH 5", Family::Mpich, &venv, scratch)),
            venv("impi").and_then(|venv| Self::in_venv("Intel MPI", Family::Intel, &venv, scratch)),
        ]
    }

    /// Debian's Open MPI. Without its headers (libopenmpi-dev) the program compiled for a newer
    /// Open MPI runs with Debian's library: both have one ABI.
    fn of_debian(scratch: &Path, newer: Option<&Self>) -> Result<Self, String> {
        run(Command::new("mpirun").arg("--version")).map_err(|_| "Debian's Open MPI is not installed".to_owned())?;
        let executable = match (compile("mpicc".as_ref(), scratch, "debian", &[]), newer) {
            (Ok(executable), _) => executable,
            (Err(_), Some(newer)) => newer.executable.clone(),
            (Err(why), None) => return Err(why),
        };
        let environment = vec![("LD_LIBRARY_PATH", DEBIAN.to_owned())];
        let (launcher, family) = ("mpirun".into(), Family::OpenMpi);
        Ok(Self { name: "Open MPI 4.1", family, launcher, executable, settings: &[], environment })
    }

    fn in_venv(name: &'static str, family: Family, venv: &Path, scratch: &Path) -> Result<Self, String> {
        let (bin, lib) = (venv.join("bin"), venv.join("lib"));
        let mut environment = keep_memory();
        environment.push(("LD_LIBRARY_PATH", lib.display().to_string()));
        if family == Family::Intel {
            environment.push(("I_MPI_ROOT", venv.display().to_string()));
        }
        let folder = venv.file_name().unwrap_or_default().to_string_lossy();
        let executable = compile(&bin.join("mpicc"), scratch, &folder, &environment)?;
        let launcher = bin.join(if family == Family::Intel { "mpiexec.hydra" } else { "mpirun" });
        Ok(Self { name, family, launcher, executable, settings: &[], environment })
    }

    /// The same MPI with arguments of its launcher, and with memory that is not given back.
    fn tuned(mut self, name: &'static str, settings: &'static [&'static str]) -> Self {
        self.environment.extend(keep_memory());
        Self { name, settings, ..self }
    }

    /// The name in the table.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }

    /// Whether waiting ranks never give up their core.
    pub(super) fn only_spins(&self) -> bool {
        self.family == Family::Mpich
    }

    /// The command that measures points that differ in size alone.
    pub(super) fn command(&self, points: &[Point]) -> io::Result<Command> {
        let Some(&Point { operation, place, ranks, .. }) = points.first() else {
            return Err(io::Error::other("no point to measure"));
        };
        let cores = affinity::cores()?.len();
        let enough = cores >= ranks;
        let placement: &[&str] = match (self.family, enough) {
            (Family::OpenMpi, true) => &["--allow-run-as-root", "--bind-to", "core"],
            // Waiting ranks yield, which Open MPI 5 may not do by itself.
            (Family::OpenMpi, false) => {
                &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
            }
            (_, true) => &["-bind-to", "core"],
            (_, false) => &[],
        };
        let mut command = Command::new(&self.launcher);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if self.family == Family::Intel && !enough && ranks % cores != 0 {
            // Pinned ranks that share cores unevenly are slower.
            command.env("I_MPI_PIN", "0");
        }
        command.args(["-n", &ranks.to_string()]).args(placement).args(self.settings).arg(&self.executable);
        command.args([operation.name(), place.name()]);
        for Point { size, iterations, warmup, .. } in points {
            command.args([size, iterations, warmup].map(ToString::to_string));
        }
        Ok(command)
    }
}

/// Compiles `collectives.c`.
fn compile(compiler: &Path, folder: &Path, name: &str, environment: &[(&str, String)]) -> Result<PathBuf, String> {
    let executable = folder.join(format!("collectives-{name}"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi/collectives.c");
    let mut command = Command::new(compiler);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.args(["-O3", "-Wall", "-Wextra", "-o"]).arg(&executable).arg(source);
    let failure = |error: io::Error| format!("{} cannot compile a program: {error}", compiler.display());
    std::fs::create_dir_all(folder).map_err(failure)?;
    run(&mut command).map_err(failure)?;
    Ok(executable)
}
