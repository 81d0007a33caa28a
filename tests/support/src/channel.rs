//! A line-based conversation between two processes over pipes.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::LIMIT;

/// Prefix of each line of the conversation: the test harness prints to the same pipe.
const MARK: &str = "@peer ";

/// One side of a conversation.
#[derive(Debug)]
pub struct Channel {
    input: BufReader<File>,
    output: Option<File>,
}

impl Channel {
    pub(crate) fn new(input: OwnedFd, output: OwnedFd) -> Self {
        Self { input: BufReader::new(input.into()), output: Some(output.into()) }
    }

    /// Closes the sending direction.
    pub(crate) fn hang_up(&mut self) {
        self.output = None;
    }

    /// Reads the next line of the pipe, from the conversation or from the harness; `None` at the
    /// end.
    pub(crate) fn next_line(&mut self) -> Option<String> {
        if self.input.buffer().is_empty() {
            wait_readable(self.input.get_ref());
        }
        let mut line = String::new();
        (self.input.read_line(&mut line).expect("a line of text") != 0).then_some(line)
    }

    /// Sends a line.
    ///
    /// # Panics
    ///
    /// If the other process is gone.
    pub fn tell(&mut self, line: &str) {
        let output = self.output.as_mut().expect("open until the end");
        // A single write, so that no output of the harness comes in between. The leading newline
        // ends a line that the harness may have begun.
        output.write_all(format!("\n{MARK}{line}\n").as_bytes()).expect("the other process is gone");
    }

    /// Receives a line; `None` once the other process has closed its end.
    pub fn try_hear(&mut self) -> Option<String> {
        loop {
            if let Some((_, line)) = self.next_line()?.split_once(MARK) {
                return Some(line.trim_end().to_owned());
            }
        }
    }

    /// Receives a line.
    ///
    /// # Panics
    ///
    /// If the other process is gone, or sends nothing within [`LIMIT`].
    pub fn hear(&mut self) -> String {
        self.try_hear().expect("the other process is gone")
    }

    /// Sends a line and receives one.
    ///
    /// # Panics
    ///
    /// Like [`tell`](Self::tell) and [`hear`](Self::hear).
    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    /// Receives a line of numbers.
    ///
    /// # Panics
    ///
    /// Like [`hear`](Self::hear), and if a word is no number.
    pub fn hear_numbers(&mut self) -> Vec<u64> {
        self.hear().split_whitespace().map(|word| word.parse().expect("a number")).collect()
    }

    /// Sends bytes.
    ///
    /// # Panics
    ///
    /// If the other process is gone.
    pub fn send(&mut self, bytes: &[u8]) {
        self.tell(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    }

    /// Receives bytes.
    ///
    /// # Panics
    ///
    /// Like [`hear`](Self::hear).
    pub fn receive(&mut self) -> Vec<u8> {
        let line = self.hear();
        (0..line.len() / 2).map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16).expect("hex")).collect()
    }

    /// Receives a fixed number of bytes.
    ///
    /// # Panics
    ///
    /// Like [`hear`](Self::hear), and if another number of bytes comes.
    pub fn receive_exact<const N: usize>(&mut self) -> [u8; N] {
        self.receive().try_into().expect("a message of another length")
    }
}

/// Waits until there are bytes to read, or the other side is closed.
fn wait_readable(file: &File) {
    let mut poll_fd = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(LIMIT).expect("a short time");
    loop {
        match poll(&mut poll_fd, timeout) {
            Err(Errno::EINTR) => {}
            ready => return assert_ne!(ready, Ok(0), "the other process says nothing for {LIMIT:?}"),
        }
    }
}
