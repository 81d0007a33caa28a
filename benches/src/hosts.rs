//! Two hosts for a comparison: two loopback addresses in a network namespace that has no others, or
//! two network namespaces of this machine with a veth pair between them. `soft0` then connects the
//! two sides by TCP.
//!
//! A program that compares on two hosts starts itself again for each [`Site`], because `soft0`
//! reads its variables when it is first opened. The namespaces end with their processes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use crate::pair::{Channel, Role};
use crate::{mode, pair, programs};

/// The option of a process of a site: `--site=NAME`.
const SITE: &str = "--site";

/// Where the two hosts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Two addresses of the loopback interface.
    Loopback,
    /// Two network namespaces with a veth pair between them.
    Veth,
}

impl Site {
    /// Both sites.
    pub const ALL: [Self; 2] = [Self::Loopback, Self::Veth];

    /// The name in tables and options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "veth",
        }
    }

    /// The site of this process, if it was started for one.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        let name = mode::option(SITE)?;
        Self::ALL.into_iter().find(|site| site.name() == name)
    }

    /// The address of a side.
    #[must_use]
    pub fn address(self, role: Role) -> IpAddr {
        let last = if role == Role::Leader { 2 } else { 3 };
        match self {
            Self::Loopback => Ipv4Addr::new(127, 0, 0, last).into(),
            Self::Veth => Ipv4Addr::new(10, 77, 29, last).into(),
        }
    }

    /// Has `soft0` of a process listen at the side's address. A fresh namespace has every port.
    pub fn set(self, command: &mut Command, role: Role) {
        command.env("RDMA_SOFT_TCP", self.address(role).to_string());
    }

    /// The command that starts this program again as the leader of the site, with the arguments of
    /// this process.
    ///
    /// # Errors
    ///
    /// If the executable has no name.
    pub fn command(self, key: &Key) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1));
        command.arg(format!("{SITE}={}", self.name())).env("RDMA_SOFT_KEY", &key.0);
        // A process that compares encrypted connections sets it again.
        command.env("RDMA_SOFT_TLS", "off");
        self.set(&mut command, Role::Leader);
        Ok(command)
    }

    /// Takes this process into its network, before it opens a device; the reason why it cannot.
    ///
    /// # Errors
    ///
    /// A sentence.
    pub fn enter(self) -> Result<(), String> {
        let is_follower = pair::is_follower();
        if self == Self::Loopback && is_follower {
            return Ok(());
        }
        // A follower's leader has asked already.
        if !is_follower {
            programs::run(Command::new("ip").arg("-V")).map_err(|_| "ip(8) is not installed".to_owned())?;
        }
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| format!("a network namespace needs a right: {errno}"))?;
        ip("link set lo up").map_err(|error| error.to_string())
    }

    /// Connects the networks of the two sides.
    ///
    /// # Errors
    ///
    /// That of ip(8), or of the channel.
    pub fn connect(self, role: Role, channel: &mut Channel) -> io::Result<()> {
        if self == Self::Loopback {
            return Ok(());
        }
        let (ours, theirs) = ("soft-a", "soft-b");
        match role {
            Role::Leader => {
                let pid = channel.receive()?;
                ip(&format!("link add {ours} type veth peer name {theirs} netns {pid}"))?;
                self.bring_up(role, ours)?;
                channel.send("linked")?;
                channel.receive()?;
            }
            Role::Follower => {
                channel.send(&std::process::id().to_string())?;
                channel.receive()?;
                self.bring_up(role, theirs)?;
                channel.send("up")?;
            }
        }
        Ok(())
    }

    fn bring_up(self, role: Role, interface: &str) -> io::Result<()> {
        ip(&format!("addr add {}/24 dev {interface}", self.address(role)))?;
        ip(&format!("link set {interface} up"))
    }
}

fn ip(arguments: &str) -> io::Result<()> {
    programs::run(Command::new("ip").args(arguments.split(' '))).map(drop)
}

/// A file with the key of a job, which is removed when this value is dropped.
#[derive(Debug)]
pub struct Key(PathBuf);

impl Key {
    /// Makes a random key.
    ///
    /// # Errors
    ///
    /// The file's error.
    pub fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("rdma-benches-{}.key", std::process::id()));
        let mut secret = [0; 32];
        io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut secret)?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let this = Self(path);
        file.write_all(&secret)?;
        Ok(this)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}
