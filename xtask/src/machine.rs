//! Throwaway virtual machines: kernel, initial file system, emulator. They read the host's files,
//! and write to memory, or to a disk of their own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{output, root, succeeds};

/// Prefix of the guest's lines that are for this program and not for the reader.
pub const MARK: &str = "@machine";

/// Modules that the first process needs to see the host's files; others are loaded from there.
const EARLY: &[&str] = &["virtio_pci", "9pnet_virtio", "9p", "overlay"];

/// A program that is called here or in a machine, and its package.
pub type Tool = (&'static str, &'static str);

/// The programs that every machine needs.
pub const TOOLS: [Tool; 4] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("modprobe", "kmod"),
    ("cpio", "cpio"),
];

/// Installs what is missing, as root. Why a machine is not available, or `None`.
pub fn install(tools: &[Tool], files: &[Tool]) -> Result<Option<String>> {
    let on_path = |tool: &str| succeeds("sh", ["-c", &format!("command -v {tool}")]);
    let missing = || -> Vec<&str> {
        let tools = tools.iter().filter(|(tool, _)| !on_path(tool)).map(|(_, p)| *p);
        let files = files.iter().filter(|(f, _)| !Path::new(f).exists());
        tools.chain(files.map(|(_, p)| *p)).collect()
    };
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Some("it is made for Linux on x86-64".to_owned()));
    }
    if missing().is_empty() {
        return Ok(None);
    }
    if !on_path("apt-get") {
        return Ok(Some(format!("needs {} and there is no apt-get", missing().join(", "))));
    }
    if output(Command::new("id").arg("-u"))?.trim() != "0" {
        return Ok(Some(format!("run as root: apt-get install {}", missing().join(" "))));
    }
    let script = format!(
        "timeout 120 apt-get -qq update && DEBIAN_FRONTEND=noninteractive timeout 400 apt-get -qq install -y --no-install-recommends {} >/dev/null",
        missing().join(" ")
    );
    let installed = Command::new("sh").args(["-c", &script]).status().context("apt-get")?;
    if !installed.success() {
        return Ok(Some(format!("apt-get could not install {}", missing().join(", "))));
    }
    Ok(None)
}

/// The parts of the machine.
pub struct Machine {
    /// The directory of all files made here.
    dir: PathBuf,
    kernel: PathBuf,
    /// Contains `lib/modules`.
    kernel_dir: PathBuf,
}

/// A machine that runs.
pub struct Running {
    emulator: Child,
    lines: Receiver<String>,
}

/// What a machine has said.
pub enum Said {
    /// A line.
    Line(String),
    /// Nothing in time.
    Nothing,
    /// It has ended.
    Ended,
}

impl Running {
    /// The next line of its console.
    #[expect(clippy::disallowed_methods, reason = "it waits for an emulator, by the clock")]
    pub fn line(&self, until: Instant) -> Said {
        match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => Said::Line(line),
            Err(RecvTimeoutError::Timeout) => Said::Nothing,
            Err(RecvTimeoutError::Disconnected) => Said::Ended,
        }
    }

    /// Its power is gone. What it has said before can still be heard.
    pub fn kill(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Machine {
    /// Unpacks a kernel (fetched once for all machines, never installed), and makes the initial
    /// file system in `dir`.
    pub fn prepare(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let kernel_dir = root().join("target/kernel");
        if !kernel_dir.join("complete").exists() {
            fetch_kernel(&kernel_dir)?;
        }
        let version = only_entry(&kernel_dir.join("lib/modules"))?;
        let kernel = kernel_dir.join("boot").join(format!("vmlinuz-{version}"));
        let machine = Self { dir: dir.to_owned(), kernel, kernel_dir };
        machine.make_initramfs(&version)?;
        Ok(machine)
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn make_initramfs(&self, version: &str) -> Result<()> {
        let tree = self.dir.join("initramfs");
        let _ = fs::remove_dir_all(&tree);
        for sub in ["bin", "proc", "dev", "modules", "lower", "layer", "root"] {
            fs::create_dir_all(tree.join(sub))?;
        }
        fs::copy("/bin/busybox", tree.join("bin/busybox")).context("busybox-static")?;
        fs::write(tree.join("init"), include_str!("machine_init.sh"))?;
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

    /// Boots the machine with a script as its first program, which finds MARK, DIR and KERNEL_DIR,
    /// and with further arguments of the emulator.
    #[expect(clippy::disallowed_methods, reason = "it waits for an emulator")]
    pub fn boot(&self, script: &str, arguments: &[&str]) -> Result<Running> {
        let head = format!(
            "#!/bin/bash\nDIR='{}'\nKERNEL_DIR='{}'\nMARK='{MARK}'\n",
            self.dir.display(),
            self.kernel_dir.display()
        );
        let guest = self.dir.join("guest.sh");
        fs::write(&guest, head + script)?;
        executable(&guest)?;
        let mut emulator = self.emulator().args(arguments).spawn().context("qemu-system-x86_64")?;
        let console = emulator.stdout.take().context("the emulator's console")?;
        let (send, lines) = channel();
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
        Ok(Running { emulator, lines })
    }

    fn emulator(&self) -> Command {
        let mut c = Command::new("qemu-system-x86_64");
        // Plain emulation, because hardware virtualisation needs rights that not every build
        // machine grants.
        c.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "4G"]);
        c.args(["-nographic", "-no-reboot"]);
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
