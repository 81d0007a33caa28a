//! Boots the guest, runs one command there, and waits until the guest has shut down.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::kernel::Image;
use crate::system;

/// The emulated processor: all of QEMU's features but the slow ones. With ERMS and FSRM the kernel
/// copies and clears memory byte by byte, one emulation step each; without them, by eight bytes.
/// LA57 adds a level to each page table walk; SMAP and SMEP add instructions around each of the
/// kernel's copies.
const EMULATED: &str = "max,la57=off,erms=off,fsrm=off,smap=off,smep=off";
/// Makes the kernel trust the time stamp counter, which comes from the host on every emulated
/// processor. The kernel would otherwise find that the counters differ and read the HPET, a device,
/// for each clock access, one processor at a time.
const EMULATED_CLOCK: &str = "tsc=reliable";

/// The memory, in MiB, that a guest alone has beside its own: above the address 4 GiB a second NUMA
/// node, with a huge page of 1 GiB, and below it the rest of what QEMU puts there. The host gives
/// only what the guest touches.
const SECOND_NODE: u32 = 1280;
const BELOW_4_GIB: u32 = 2048;
/// Huge pages of both sizes. The one of 1 GiB is on the second node (1).
const HUGE_PAGES: &str = "hugepagesz=2M hugepages=16 hugepagesz=1G hugepages=1:1";

/// The time in which the first of two guests makes its ends of the wires.
const WIRING: Duration = Duration::from_secs(30);

/// A guest and its settings.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) image: Image,
    /// The folder that is `/out` in the guest.
    pub(crate) out: PathBuf,
    pub(crate) accelerator: Accelerator,
    pub(crate) processors: u8,
    /// Number of guests that run at the same time, including this one.
    pub(crate) guests: usize,
    pub(crate) memory: u32,
    pub(crate) limit: Duration,
    /// The ends of wires that are the guest's network interfaces, in their order.
    pub(crate) wires: Vec<Wire>,
}

/// One side of a wire between two guests.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    /// The Unix socket that joins the ends.
    pub(crate) socket: PathBuf,
    /// Whether this side makes the socket; the other connects to it.
    pub(crate) listens: bool,
    /// The number of the guest's interfaces at this side. More than one are in one network with
    /// those at the other side.
    pub(crate) cards: usize,
}

/// The implementation of the guest's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Accelerator {
    /// KVM where a guest starts with it, else TCG.
    Auto,
    /// The processor.
    Kvm,
    /// QEMU's own emulation.
    Tcg,
}

impl Guest {
    /// Runs the command with its output on standard output. Fails if the guest does not reach its
    /// end.
    pub(crate) fn run(&self, command: &str) -> Result<(), String> {
        system::make(&self.out)?;
        system::write(self.out.join("command"), command)?;
        let mut qemu = self.start(self.accelerator, Stdio::inherit())?;
        let deadline = Instant::now() + self.limit;
        let ended = loop {
            if qemu.try_wait().map_err(|error| error.to_string())?.is_some() {
                break true;
            }
            if Instant::now() > deadline {
                stop(&mut qemu);
                break false;
            }
            thread::sleep(Duration::from_millis(20));
        };
        let console = self.console();
        if !ended {
            return Err(format!("the guest ran longer than {:?}\n{}", self.limit, tail(&console)));
        }
        if !reached(&console, "end") {
            return Err(format!("the guest stopped before its end\n{}", tail(&console)));
        }
        Ok(())
    }

    /// Waits until the guest, which another thread runs, has made its wires.
    pub(crate) fn wait_for_wires(&self) -> Result<(), String> {
        let deadline = Instant::now() + WIRING;
        while !self.wires.iter().all(|wire| wire.socket.exists()) {
            if Instant::now() > deadline {
                return Err(format!("the first guest made no wires within {WIRING:?}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The kernel's messages on the console: errors, and the steps that the guest has reached.
    fn console(&self) -> String {
        text(&self.console_path())
    }

    /// All messages of the kernel, or the console's if the guest did not reach its end.
    pub(crate) fn messages(&self) -> String {
        let all = text(&self.out.join("dmesg"));
        if all.is_empty() { self.console() } else { all }
    }

    fn console_path(&self) -> PathBuf {
        self.out.join("console")
    }

    fn start(&self, accelerator: Accelerator, stdout: Stdio) -> Result<Child, String> {
        drop(fs::remove_file(self.console_path()));
        // A comma ends a QEMU option unless it is doubled.
        let text = |path: &Path| path.display().to_string().replace(',', ",,");
        let share = |path: &Path, tag: &str, mode: &str| {
            let path = text(path);
            ["-virtfs".into(), format!("local,path={path},mount_tag={tag},security_model=none,{mode}multidevs=remap")]
        };
        let (accelerator, processor, clock) = match accelerator {
            Accelerator::Kvm => ("kvm", "host", ""),
            Accelerator::Tcg | Accelerator::Auto => (self.emulator(), EMULATED, EMULATED_CLOCK),
        };
        // Warnings do not go to the slow console: `init` copies them from the kernel's log buffer,
        // which has space for a whole run. An emulated processor may have to wait for a real one,
        // which is no fault. The watchdog and the check for a stopped timer are therefore disabled.
        let settings =
            "console=ttyS0 quiet log_buf_len=4M nowatchdog no_timer_check panic=-1 mitigations=off random.trust_cpu=on";
        let (memory, nodes, pages) = self.memory();
        let machine = format!("-accel {accelerator} -cpu {processor} -smp {} -m {memory}{nodes}", self.processors);
        let fixed = "-M q35 -no-reboot -nodefaults -display none -device isa-debug-exit,iobase=0xf4,iosize=1";
        let Image { kernel, initrd, packages } = &self.image;
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(machine.split(' ')).args(fixed.split(' ')).arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
        qemu.args(["-append", &format!("{settings} {clock} {pages}")]);
        qemu.args(["-serial", &format!("file:{}", self.console_path().display()), "-serial", "stdio"]);
        qemu.args(share(Path::new("/"), "host", "readonly=on,")).args(share(packages, "packages", "readonly=on,"));
        qemu.args(share(&self.out, "out", ""));
        for (number, wire) in self.wires.iter().enumerate() {
            let (server, end) = if wire.listens { ("on", 1) } else { ("off", 2) };
            let socket = text(&wire.socket);
            qemu.args(["-netdev", &format!("stream,id=w{number},server={server},addr.type=unix,addr.path={socket}")]);
            let hub = wire.cards > 1;
            if hub {
                qemu.args(["-netdev", &format!("hubport,id=h{number},hubid={number},netdev=w{number}")]);
            }
            for card in 0..wire.cards {
                let mut port = format!("w{number}");
                if hub {
                    port += &format!("c{card}");
                    qemu.args(["-netdev", &format!("hubport,id={port},hubid={number}")]);
                }
                let card = format!("virtio-net-pci,netdev={port},mac=52:54:00:{card:02}:{number:02}:{end:02}");
                qemu.args(["-device", &card]);
            }
        }
        qemu.stdin(Stdio::null())
            .stdout(stdout)
            .spawn()
            .map_err(|error| format!("cannot run qemu-system-x86_64: {error}"))
    }

    /// The memory in MiB, QEMU's options that divide it, and the kernel's for huge pages.
    /// Two guests have no second node: the host may be small, and they have no tests of memory.
    fn memory(&self) -> (u32, String, &'static str) {
        if !self.wires.is_empty() {
            return (self.memory, String::new(), "");
        }
        // The second node begins with a whole page of 1 GiB.
        let first = self.memory.max(BELOW_4_GIB).next_multiple_of(1024);
        let node = |number, mebibytes, processors: &str| {
            let object = format!("-object memory-backend-ram,id=m{number},size={mebibytes}M");
            format!(" {object} -numa node,nodeid={number},memdev=m{number}{processors}")
        };
        let processors = format!(",cpus=0-{}", self.processors.saturating_sub(1));
        let nodes = node(0, first, &processors) + &node(1, SECOND_NODE, "");
        (first + SECOND_NODE, nodes, HUGE_PAGES)
    }

    /// The emulation mode for this number of processors. Guests with more processors than the
    /// machine emulate theirs by turns in one thread, which ends a turn when its processor waits or
    /// spins. With one thread per processor, a processor that spins for a lock would keep the
    /// lock's holder from running: two guests on two processors would take twice the time.
    fn emulator(&self) -> &'static str {
        let real = thread::available_parallelism().map_or(1, usize::from);
        if self.guests * usize::from(self.processors) > real { "tcg,thread=single" } else { "tcg,thread=multi" }
    }

    /// Decides between KVM and TCG, with a trial the first time: on some machines a guest that KVM
    /// starts hangs within its first second.
    pub(crate) fn choose(&mut self, cache: &Path) -> Result<(), String> {
        if self.accelerator != Accelerator::Auto {
            return Ok(());
        }
        let answer = cache.join("accelerator");
        self.accelerator = match fs::read_to_string(&answer).as_deref() {
            Ok("kvm") => Accelerator::Kvm,
            Ok(_) => Accelerator::Tcg,
            Err(_) => {
                let works = fs::File::options().read(true).write(true).open("/dev/kvm").is_ok() && self.try_kvm()?;
                system::write(answer, if works { "kvm" } else { "tcg" })?;
                if works { Accelerator::Kvm } else { Accelerator::Tcg }
            }
        };
        Ok(())
    }

    fn try_kvm(&self) -> Result<bool, String> {
        eprintln!("vm: trying KVM");
        system::make(&self.out)?;
        system::write(self.out.join("command"), "")?;
        let mut qemu = self.start(Accelerator::Kvm, Stdio::null())?;
        let deadline = Instant::now() + Duration::from_secs(15);
        let mut works = false;
        while Instant::now() < deadline && !works && qemu.try_wait().map_err(|error| error.to_string())?.is_none() {
            thread::sleep(Duration::from_millis(50));
            works = reached(&self.console(), "end");
        }
        works |= reached(&self.console(), "end");
        stop(&mut qemu);
        Ok(works)
    }
}

fn text(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn stop(qemu: &mut Child) {
    // Both calls fail only if the process is gone already.
    drop(qemu.kill());
    drop(qemu.wait());
}

/// Whether the guest's init process has reported this step.
fn reached(console: &str, step: &str) -> bool {
    console.lines().any(|line| line.trim_end().strip_suffix(step).is_some_and(|rest| rest.contains("@@ ")))
}

/// The last lines of the console.
fn tail(console: &str) -> String {
    let lines: Vec<_> = console.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}
