//! The stand-in for iproute2's program `rdma`, in the PATH of programs under `--sysfs`.
//!
//! `rdma link show` asks the kernel by netlink, which has no software device. The stand-in answers
//! this command alone: with the links that the host's `rdma` prints, if it runs, and with those of
//! the software devices, as the files of `--sysfs` describe them. All other commands are the
//! host's.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use nix::net::if_::if_nametoindex;
use serde_json::{Value, json};

use super::tree::{DEVICES, is_software};
use crate::SELF;
use crate::failure::Failure;

/// The program's name.
const PROGRAM: &str = "rdma";
/// The name of the folder that has the stand-in, by which it finds itself in PATH.
const FOLDER: &str = "soft-rdma-bin";
/// The words that `rdma` takes for its object `link` and for that object's default command.
const OBJECT: &str = "link";
const COMMANDS: [&str; 3] = ["show", "lst", "list"];

/// A port of a software device.
#[derive(Debug, PartialEq)]
struct Link {
    device: String,
    port: u32,
    /// Attributes by the names and in the order of `rdma`.
    attributes: Vec<(&'static str, Value)>,
}

/// What `rdma link show` is asked for.
#[derive(Debug, Default, PartialEq)]
struct Query {
    is_json: bool,
    is_pretty: bool,
    /// The device and the port, if one is named.
    name: Option<(String, Option<u32>)>,
}

/// Whether this process was started as the stand-in.
pub(crate) fn is_called() -> bool {
    env::args_os().next().is_some_and(|name| Path::new(&name).file_name().is_some_and(|name| name == PROGRAM))
}

/// Puts the stand-in into a folder in `parent`, and returns the PATH with this folder; `None` if
/// there is no PATH.
pub(crate) fn path(parent: &Path) -> io::Result<Option<OsString>> {
    let Some(others) = env::var_os("PATH") else { return Ok(None) };
    let folder = parent.join(FOLDER);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    place(&folder, &fs::read_link(SELF)?)?;
    let mut path = folder.into_os_string();
    path.push(":");
    path.push(others);
    Ok(Some(path))
}

/// Makes the stand-in in a folder a link to `program`.
fn place(folder: &Path, program: &Path) -> io::Result<()> {
    let link = folder.join(PROGRAM);
    if fs::read_link(&link).is_ok_and(|found| found == program) {
        return Ok(());
    }
    // By a rename, so that a program that runs with the old link always finds one. Process numbers
    // repeat, so the time is in the name too.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let new = folder.join(format!("{PROGRAM}.{}.{now}", std::process::id()));
    symlink(program, &new)?;
    fs::rename(&new, &link).inspect_err(|_| {
        let _removed = fs::remove_file(&new);
    })
}

/// Answers `rdma link show`, or becomes the host's `rdma`.
pub(crate) fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let (mut host, links) = (host(), links(Path::new(DEVICES)));
    let query = Query::parse(&arguments);
    let wanted: Vec<&Link> =
        links.iter().filter(|link| query.as_ref().is_some_and(|query| query.names(link))).collect();
    let query = match (query, host.as_mut()) {
        (Some(query), _) if query.name.is_none() || !wanted.is_empty() => query,
        (_, Some(host)) => return Err(host.args(env::args_os().skip(1)).exec().into()),
        (query, None) => return Err(Failure::new(refusal(query.as_ref()))),
    };
    // Without RDMA the kernel refuses netlink to the host's program: then there is no other link.
    let others = host.filter(|_| query.name.is_none()).and_then(|mut host| {
        let output = host.args(&arguments).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    let text = query.print(&others.unwrap_or_default(), &wanted).map_err(|error| Failure::new(error.to_string()))?;
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Why a command has no answer where the host has no `rdma`.
fn refusal(query: Option<&Query>) -> String {
    match query.and_then(|query| query.name.as_ref()) {
        Some((device, None)) => format!("there is no link {device}"),
        Some((device, Some(port))) => format!("there is no link {device}/{port}"),
        None => "rdma of iproute2 is not installed; --sysfs answers `rdma [-j] link [show [DEVICE[/PORT]]]` alone"
            .to_owned(),
    }
}

impl Query {
    /// Reads the arguments of `rdma`; `None` if they ask for something else. Options may stand
    /// anywhere, and `rdma` takes any beginning of a word.
    fn parse(arguments: &[String]) -> Option<Self> {
        let (mut query, mut words) = (Self::default(), Vec::new());
        for argument in arguments {
            match argument.strip_prefix('-') {
                Some("-json") => query.is_json = true,
                Some("-pretty") => query.is_pretty = true,
                Some("-details") => (),
                Some(letters) if !letters.is_empty() && letters.chars().all(|letter| "jpd".contains(letter)) => {
                    query.is_json |= letters.contains('j');
                    query.is_pretty |= letters.contains('p');
                }
                Some(_) => return None,
                None => words.push(&**argument),
            }
        }
        let (object, rest) = words.split_first()?;
        let is_link = !object.is_empty() && OBJECT.starts_with(object);
        let rest = match rest {
            [] => rest,
            [command, rest @ ..] => {
                let is_command = COMMANDS.iter().any(|known| !command.is_empty() && known.starts_with(command));
                is_command.then_some(rest)?
            }
        };
        query.name = match rest {
            [] => None,
            [name] => match name.split_once('/') {
                Some((device, port)) if !port.is_empty() => Some((device.to_owned(), Some(port.parse().ok()?))),
                _ => Some((name.trim_end_matches('/').to_owned(), None)),
            },
            _ => return None,
        };
        is_link.then_some(query)
    }

    /// Whether the answer has this link.
    fn names(&self, link: &Link) -> bool {
        let is_port = |port: &Option<u32>| port.is_none_or(|port| port == link.port);
        self.name.as_ref().is_none_or(|(device, port)| *device == link.device && is_port(port))
    }

    /// The answer: `others` is what the host's program has printed.
    fn print(&self, others: &str, links: &[&Link]) -> Result<String, serde_json::Error> {
        if !self.is_json {
            return Ok(others.to_owned() + &links.iter().map(|link| link.line()).collect::<String>());
        }
        let mut all: Vec<Value> = match others.trim() {
            "" => Vec::new(),
            others => serde_json::from_str(others)?,
        };
        // Software devices have no number of the kernel: theirs follow those of the host.
        let after = all.iter().filter_map(|link| link["ifindex"].as_u64()).max().map_or(0, |last| last + 1);
        let mut devices: Vec<&str> = links.iter().map(|link| &*link.device).collect();
        devices.dedup();
        all.extend(links.iter().map(|link| {
            let position = devices.iter().position(|device| *device == link.device).unwrap_or(0);
            link.object(after + position as u64)
        }));
        let text = if self.is_pretty { serde_json::to_string_pretty(&all) } else { serde_json::to_string(&all) };
        text.map(|text| text + "\n")
    }
}

impl Link {
    /// Reads a port's files in `folder`.
    fn read(device: &str, port: u32, folder: &Path) -> Option<Self> {
        let read = |name: &str| Some(fs::read_to_string(folder.join(name)).ok()?.trim().to_owned());
        // A line such as "4: ACTIVE".
        let state = |name| Some(read(name)?.split_once(": ")?.1.to_owned());
        let number = |name| {
            let text = read(name)?;
            u64::from_str_radix(text.trim_start_matches("0x"), if text.starts_with("0x") { 16 } else { 10 }).ok()
        };
        let mut attributes = Vec::new();
        if read("link_layer")? == "InfiniBand" {
            let gid = read("gids/0")?;
            attributes.push(("subnet_prefix", gid.split(':').take(4).collect::<Vec<_>>().join(":").into()));
            for (name, file) in [("lid", "lid"), ("sm_lid", "sm_lid"), ("lmc", "lid_mask_count")] {
                attributes.push((name, number(file)?.into()));
            }
        }
        attributes.push(("state", state("state")?.into()));
        attributes.push(("physical_state", words(&state("phys_state")?).into()));
        if let Some(interface) = read("gid_attrs/ndevs/0") {
            attributes.push(("netdev", (&*interface).into()));
            attributes.extend(if_nametoindex(&*interface).ok().map(|index| ("netdev_index", index.into())));
        }
        Some(Self { device: device.to_owned(), port, attributes })
    }

    /// The link as `rdma -j` prints it.
    fn object(&self, number: u64) -> Value {
        let mut object = json!({ "ifindex": number, "ifname": self.device, "port": self.port });
        if let Some(object) = object.as_object_mut() {
            object.extend(self.attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        }
        object
    }

    /// The link as `rdma` prints it.
    fn line(&self) -> String {
        let mut line = format!("link {}/{} ", self.device, self.port);
        for (name, value) in self.attributes.iter().filter(|(name, _)| *name != "netdev_index") {
            match value {
                Value::String(text) => line += &format!("{name} {text} "),
                value => line += &format!("{name} {value} "),
            }
        }
        line + "\n"
    }
}

/// The ports of the software devices in a folder of sysfs, sorted.
fn links(devices: &Path) -> Vec<Link> {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut links = Vec::new();
    for device in entries(devices).into_iter().filter(|device| is_software(device)) {
        for port in entries(&device.join("ports")) {
            links.extend(name(&port).parse().ok().and_then(|number| Link::read(&name(&device), number, &port)));
        }
    }
    // soft2 before soft10.
    links.sort_by_key(|link: &Link| (link.device.len(), link.device.clone(), link.port));
    links
}

/// A name such as `LinkUp` as `rdma` writes it: `LINK_UP`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.extend(letter.to_uppercase());
    }
    words
}

/// The host's `rdma`: the next one in PATH that is no stand-in.
fn host() -> Option<Command> {
    let path = env::var_os("PATH")?;
    let mut folders = env::split_paths(&path).filter(|folder| folder.file_name().is_none_or(|name| name != FOLDER));
    folders.find_map(|folder| Some(folder.join(PROGRAM)).filter(|program| program.is_file())).map(Command::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(line: &str) -> Option<Query> {
        Query::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn soft0() -> Link {
        let attributes = vec![("state", "ACTIVE".into()), ("netdev", "lo".into()), ("netdev_index", 1.into())];
        Link { device: "soft0".into(), port: 1, attributes }
    }

    #[test]
    fn commands_for_links_are_told_from_others() {
        let json = Query { is_json: true, ..Query::default() };
        assert_eq!(query("link show -j"), query("-j li sh"));
        assert_eq!(query("link show -j"), Some(json));
        assert_eq!(query("-jp link").map(|query| query.is_pretty), Some(true));
        let named = |line: &str| query(line).and_then(|query| query.name);
        assert_eq!(named("link show soft0/1"), Some(("soft0".into(), Some(1))));
        assert_eq!(named("link show soft0"), Some(("soft0".into(), None)));
        assert_eq!(named("link show soft0/"), Some(("soft0".into(), None)));
        for other in ["", "dev show", "link add rxe0 type rxe netdev lo", "link show a b", "-h link", "link show a/b"] {
            assert_eq!(query(other), None, "{other}");
        }
        assert!(query("link show soft0/1").unwrap().names(&soft0()));
        assert!(!query("link show soft0/2").unwrap().names(&soft0()));
        assert!(!query("link show soft1").unwrap().names(&soft0()));
    }

    #[test]
    fn the_stand_in_is_placed_whatever_an_earlier_run_has_left() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, link) = (folder.path(), folder.path().join(PROGRAM));
        symlink("left", folder.join(format!("{PROGRAM}.{}", std::process::id()))).unwrap();
        for program in ["/one", "/other", "/other"] {
            place(folder, Path::new(program)).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), Path::new(program));
        }
        // A link does not replace a folder, and none is left.
        fs::remove_file(&link).unwrap();
        fs::create_dir(&link).unwrap();
        assert!(place(folder, Path::new("/one")).is_err());
        assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
    }

    #[test]
    fn a_link_that_does_not_exist_is_named() {
        assert_eq!(refusal(query("link show soft9").as_ref()), "there is no link soft9");
        assert_eq!(refusal(query("link show soft0/7").as_ref()), "there is no link soft0/7");
        assert!(refusal(query("dev show").as_ref()).contains("iproute2"));
    }

    #[test]
    fn the_answer_has_the_links_of_the_host() {
        let (json, link) = (query("-j link").unwrap(), soft0());
        let ours = r#"{"ifindex":0,"ifname":"soft0","port":1,"state":"ACTIVE","netdev":"lo","netdev_index":1}"#;
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(value(&json.print("", &[&link]).unwrap()), value(&format!("[{ours}]")));
        let both = json.print(r#"[{"ifindex":3,"ifname":"mlx5_0","port":1}]"#, &[&link]).unwrap();
        assert_eq!(value(&both)[1]["ifindex"], 4);
        assert!(json.print("no JSON", &[&link]).is_err());
        let text = query("link").unwrap().print("link mlx5_0/1 state DOWN \n", &[&link]).unwrap();
        assert_eq!(text, "link mlx5_0/1 state DOWN \nlink soft0/1 state ACTIVE netdev lo \n");
    }

    #[test]
    fn ports_are_read_from_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("mlx5_0");
        let port = device.join("ports/1");
        fs::create_dir_all(port.join("gids")).unwrap();
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("phys_state", "5: LinkUp\n"),
            ("link_layer", "InfiniBand\n"),
            ("lid", "0x1f\n"),
            ("sm_lid", "0x1f\n"),
            ("lid_mask_count", "0\n"),
            ("gids/0", "fe80:0000:0000:0000:0200:00ff:fe00:0000\n"),
        ] {
            fs::write(port.join(file), text).unwrap();
        }
        assert!(links(folder.path()).is_empty(), "a device of the host");
        fs::write(device.join("hca_type"), "rdma-soft\n").unwrap();
        let lines: String = links(folder.path()).iter().map(Link::line).collect();
        let expected = "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 31 sm_lid 31 lmc 0 state ACTIVE \
                        physical_state LINK_UP \n";
        assert_eq!(lines, expected);
    }
}
