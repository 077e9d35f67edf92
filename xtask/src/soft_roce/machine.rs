//! The throwaway machine: kernel, initial file system, emulator.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::output;

/// Prefix of the guest's lines that are for this program and not for the reader.
const MARK: &str = "@soft-roce";

/// Modules that the first process needs to see the host's files; others are loaded from there.
const EARLY: &[&str] = &["virtio_pci", "9pnet_virtio", "9p", "overlay"];

/// The parts of the machine.
pub struct Machine {
    /// The directory of all files made here.
    dir: PathBuf,
    kernel: PathBuf,
    /// Contains `lib/modules`.
    kernel_dir: PathBuf,
}

/// One command that ran in the guest.
#[derive(Debug)]
pub struct Ran {
    /// The command.
    pub line: String,
    /// Its exit status; `None` when the machine ended before.
    pub status: Option<i32>,
    /// Duration by the guest's clock.
    pub seconds: f64,
}

impl Machine {
    /// Unpacks a kernel (fetched once, never installed) into `dir`, and makes the initial file
    /// system.
    pub fn prepare(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let kernel_dir = dir.join("kernel");
        if !kernel_dir.join("complete").exists() {
            fetch_kernel(&kernel_dir)?;
        }
        let version = only_entry(&kernel_dir.join("lib/modules"))?;
        let kernel = kernel_dir.join("boot").join(format!("vmlinuz-{version}"));
        let machine = Self { dir: dir.to_owned(), kernel, kernel_dir };
        machine.make_initramfs(&version)?;
        Ok(machine)
    }

    fn make_initramfs(&self, version: &str) -> Result<()> {
        let tree = self.dir.join("initramfs");
        let _ = fs::remove_dir_all(&tree);
        for sub in ["bin", "proc", "dev", "modules", "lower", "layer", "root"] {
            fs::create_dir_all(tree.join(sub))?;
        }
        fs::copy("/bin/busybox", tree.join("bin/busybox")).context("busybox-static")?;
        fs::write(tree.join("init"), include_str!("init.sh"))?;
        fs::write(tree.join("guest"), self.dir.join("guest.sh").to_string_lossy().as_bytes())?;
        executable(&tree.join("init"))?;
        let shown = output(
            Command::new("modprobe")
                .arg("-d")
                .arg(&self.kernel_dir)
                .args(["-S", version, "--show-depends", "-a"])
                .args(EARLY),
        )?;
        let mut order = Vec::new();
        for path in shown.lines().filter_map(|l| l.strip_prefix("insmod ")) {
            let path = Path::new(path.trim());
            let name = path.file_name().context("a module is a file")?.to_string_lossy();
            if !order.contains(&name.to_string()) {
                fs::copy(path, tree.join("modules").join(&*name))?;
                order.push(name.to_string());
            }
        }
        fs::write(tree.join("modules/order"), order.join("\n") + "\n")?;
        let pack = "find . | cpio --quiet -o -H newc | gzip -1 > ../initramfs.gz";
        output(Command::new("sh").args(["-c", pack]).current_dir(&tree))?;
        Ok(())
    }

    /// Boots the machine, runs the commands one after another, and passes their output on; within
    /// `limit`.
    #[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
    #[expect(clippy::disallowed_methods, reason = "it waits for an emulator, by the clock")]
    pub fn run(&self, list: &[String], limit: Duration) -> Result<Vec<Ran>> {
        fs::write(self.dir.join("list"), list.join("\n") + "\n")?;
        let head = format!(
            "#!/bin/bash\nDIR='{}'\nKERNEL_DIR='{}'\nMARK='{MARK}'\n",
            self.dir.display(),
            self.kernel_dir.display()
        );
        let guest = self.dir.join("guest.sh");
        fs::write(&guest, head + include_str!("guest.sh"))?;
        executable(&guest)?;
        let mut emulator = self.emulator().spawn().context("qemu-system-x86_64")?;
        let console = emulator.stdout.take().context("the emulator's console")?;
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut console = BufReader::new(console);
            let mut line = Vec::new();
            while console.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if send.send(text).is_err() {
                    break;
                }
            }
        });
        let until = Instant::now() + limit;
        let (mut ran, mut status) = (Vec::<Ran>::new(), None);
        let ended = loop {
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => match line.split_once(MARK) {
                    Some((_, said)) => note(said.trim(), &mut ran, &mut status),
                    None => println!("  | {line}"),
                },
                Err(mpsc::RecvTimeoutError::Timeout) => break false,
                Err(mpsc::RecvTimeoutError::Disconnected) => break true,
            }
            if status.is_some() {
                break true;
            }
        };
        let _ = emulator.kill();
        let _ = emulator.wait();
        if !ended {
            let at = ran.last().map_or("booting", |r| &r.line);
            bail!("the machine was still at `{at}` after {} s", limit.as_secs());
        }
        match status {
            Some(99) => bail!("the machine could not make its Soft-RoCE device (see above)"),
            Some(_) => Ok(ran),
            None => bail!("the machine ended without a word (see above)"),
        }
    }

    fn emulator(&self) -> Command {
        let mut c = Command::new("qemu-system-x86_64");
        // Plain emulation, because hardware virtualisation needs rights that not every build
        // machine grants.
        c.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "4G"]);
        c.args(["-nographic", "-no-reboot", "-nic", "none"]);
        c.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(self.dir.join("initramfs.gz"));
        c.args(["-append", "console=ttyS0 panic=1 quiet tsc=reliable clocksource=tsc"]);
        c.args([
            "-virtfs",
            "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
        ]);
        c.stdin(Stdio::null()).stdout(Stdio::piped());
        c
    }
}

/// Records a guest's line about a command, or about the end.
fn note(said: &str, ran: &mut Vec<Ran>, status: &mut Option<i32>) {
    let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
    match word {
        "run" => ran.push(Ran { line: rest.to_owned(), status: None, seconds: 0.0 }),
        "done" => {
            let mut words = rest.split(' ');
            let code = words.next().and_then(|w| w.parse().ok());
            let times: Vec<f64> = words.filter_map(|w| w.parse().ok()).collect();
            if let (Some(last), &[from, to]) = (ran.last_mut(), &times[..]) {
                (last.status, last.seconds) = (code, to - from);
            }
        }
        "status" => *status = rest.parse().ok(),
        _ => {}
    }
}

fn executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

fn only_entry(dir: &Path) -> Result<String> {
    let mut all = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let first = all.next().with_context(|| format!("{} is empty", dir.display()))??;
    Ok(first.file_name().to_string_lossy().into_owned())
}

/// Debian's ordinary kernel: the flavour for clouds has no Soft-RoCE.
fn fetch_kernel(dir: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir)?;
    let depends = output(Command::new("apt-cache").args(["depends", "linux-image-amd64"]))?;
    let name = depends
        .lines()
        .find_map(|l| l.trim().strip_prefix("Depends: ").filter(|n| n.starts_with("linux-image-")))
        .context("linux-image-amd64 depends on no kernel")?
        .to_owned();
    output(Command::new("apt-get").args(["-qq", "download", &name]).current_dir(dir))?;
    let package = fs::read_dir(dir)?
        .filter_map(|e| Some(e.ok()?.path()))
        .find(|p| p.extension().is_some_and(|e| e == "deb"))
        .with_context(|| format!("apt-get download {name} left nothing behind"))?;
    output(Command::new("dpkg").arg("-x").arg(&package).arg(dir))?;
    fs::remove_file(&package)?;
    let version = only_entry(&dir.join("lib/modules"))?;
    output(Command::new("depmod").arg("-b").arg(dir).arg(version))?;
    fs::write(dir.join("complete"), b"")?;
    Ok(())
}
