//! A private nginx with the configuration that a deployment has: only addresses, ports and folders are
//! put in.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;

use crate::port::free_port;
use crate::process::{AtOurDeath, Process, command, find_on_path};
use crate::program::{read_log, tail};
use crate::temp::{TempDir, temp_dir};

const READY_WITHIN: Duration = Duration::from_secs(30);
const STOPPED_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);
const PORTS_TRIED_MAX: u32 = 5;

/// A running nginx; stopped when dropped.
pub struct Nginx {
    process: Process,
    port: u16,
    tls_port: Option<u16>,
    directory: TempDir,
}

/// How to start an [`Nginx`].
pub struct NginxBuilder {
    shipped: PathBuf,
    gateways: Vec<String>,
    unlimited: Vec<String>,
    balancer: Option<String>,
    certificate: Option<PathBuf>,
}

impl Nginx {
    /// With the configuration in the folder `shipped`, in which `site/` is what a deployment sets.
    pub fn builder(shipped: impl AsRef<Path>) -> NginxBuilder {
        NginxBuilder {
            shipped: shipped.as_ref().to_owned(),
            gateways: Vec::new(),
            unlimited: Vec::new(),
            balancer: None,
            certificate: None,
        }
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port on 127.0.0.1 for TLS.
    ///
    /// # Panics
    /// When it was started without a certificate.
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("it has a certificate")
    }

    /// The process id of its master.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The lines of its access log so far.
    pub fn access_log(&self) -> String {
        read_log(&self.directory.path().join("access.log"))
    }

    /// What it complained of so far.
    pub fn log(&self) -> String {
        read_log(&log_path(&self.directory))
    }
}

impl Drop for Nginx {
    /// In order, because a master that is killed leaves its workers behind.
    fn drop(&mut self) {
        self.process.signal(Signal::TERM);
        self.process.wait_exit(STOPPED_WITHIN);
        if std::thread::panicking() {
            eprintln!("---- the end of the log of nginx ----\n{}\n----", tail(&self.log()));
        }
    }
}

impl NginxBuilder {
    /// Adds a gateway, as `host:port`.
    pub fn gateway(mut self, address: &str) -> Self {
        self.gateways.push(address.to_owned());
        self
    }

    /// Lets clients of this address or network through without limits.
    pub fn unlimited(mut self, network: &str) -> Self {
        self.unlimited.push(network.to_owned());
        self
    }

    /// Believes what a load balancer of this address or network says of its clients.
    pub fn balancer(mut self, network: &str) -> Self {
        self.balancer = Some(network.to_owned());
        self
    }

    /// Listens for TLS too, with a PEM file that has certificate and key.
    pub fn certificate(mut self, file: impl AsRef<Path>) -> Self {
        self.certificate = Some(file.as_ref().to_owned());
        self
    }

    /// Starts it and waits until it listens.
    ///
    /// # Panics
    /// When it cannot be started; a missing `nginx` says how to get it.
    pub fn start(self) -> Nginx {
        self.try_start().unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Starts it, with an error where [`NginxBuilder::start`] panics.
    pub fn try_start(self) -> anyhow::Result<Nginx> {
        let program = find_program()?;
        let directory = temp_dir("nginx");
        for _ in 0..PORTS_TRIED_MAX {
            let port = free_port();
            let tls_port = self.certificate.as_ref().map(|_| free_port());
            self.configure(&directory, port, tls_port)?;
            let process = self.spawn(&program, &directory)?;
            if wait_until_ready(&process, port) {
                return Ok(Nginx { process, port, tls_port, directory });
            }
            let log = read_log(&log_path(&directory));
            if !log.contains("Address already in use") {
                bail!("nginx did not start:\n{}", tail(&log));
            }
        }
        bail!("nginx found {PORTS_TRIED_MAX} ports taken, one after the other");
    }

    /// Copies what is shipped, and puts the addresses into `site/`.
    fn configure(
        &self,
        directory: &TempDir,
        port: u16,
        tls_port: Option<u16>,
    ) -> anyhow::Result<()> {
        let target = directory.path().join("conf");
        fs::create_dir_all(target.join("site"))?;
        for folder in ["", "site"] {
            let from = self.shipped.join(folder);
            for entry in fs::read_dir(&from).with_context(|| format!("{}", from.display()))? {
                let path = entry?.path();
                if path.extension().is_some_and(|ending| ending == "conf") {
                    let name = path.file_name().context("a file has a name")?;
                    fs::copy(&path, target.join(folder).join(name))?;
                }
            }
        }
        let here = directory.path().display();
        let site = |name: &str, edit: &dyn Fn(String) -> String| {
            let path = target.join("site").join(name);
            let text = fs::read_to_string(&path).with_context(|| format!("site/{name}"))?;
            fs::write(&path, edit(text)).with_context(|| format!("site/{name}"))
        };
        site("paths.conf", &|text| {
            text.replace("/var/cache/nginx", &format!("{here}/cache"))
                .replace("/dev/stdout", &format!("{here}/access.log"))
        })?;
        fs::create_dir_all(directory.path().join("cache"))?;
        site("gateways.conf", &|text| {
            let servers = text.lines().filter(|line| line.starts_with("server "));
            let servers: Vec<&str> = servers.collect();
            let of = |gateway: &String| servers.join("\n").replace("gateway:8080", gateway);
            self.gateways.iter().map(of).collect::<Vec<_>>().join("\n")
        })?;
        site("clients.conf", &|text| {
            let believed = self.balancer.iter().map(|it| format!("set_real_ip_from {it};\n"));
            let unlimited: String = self.unlimited.iter().map(|it| format!("{it} 1;\n")).collect();
            believed.collect::<String>()
                + &text.replace("default 0;", &format!("default 0;\n{unlimited}"))
        })?;
        site("listen.conf", &|text| {
            let listen = text.replace("listen 8080", &format!("listen 127.0.0.1:{port}"));
            match (&self.certificate, tls_port) {
                (Some(file), Some(tls_port)) => {
                    let file = file.display();
                    format!(
                        "{listen}listen 127.0.0.1:{tls_port} ssl;\nssl_certificate {file};\n\
                         ssl_certificate_key {file};\ninclude tls.conf;\n"
                    )
                }
                _ => listen,
            }
        })
    }

    fn spawn(&self, program: &Path, directory: &TempDir) -> anyhow::Result<Process> {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(log_path(directory))
            .context("cannot create nginx's log file")?;
        // SIGINT to the master, should we die, ends its workers with it.
        let mut command = command(program, AtOurDeath::Interrupt, &[]);
        let here = directory.path().display();
        command
            // To be asked before any configuration is read, and not to complain of it.
            .args(["-e", "stderr"])
            .arg("-c")
            .arg(directory.path().join("conf/nginx.conf"))
            // Its own user could not read our folder.
            .args(["-g", &format!("daemon off; user root; pid {here}/nginx.pid;")])
            .current_dir(directory.path())
            .stdout(log.try_clone().context("cannot share nginx's log file")?)
            .stderr(log);
        Process::spawn(command).with_context(|| format!("cannot start {}", program.display()))
    }
}

fn find_program() -> anyhow::Result<PathBuf> {
    // Debian keeps daemons in sbin, which is not on every user's PATH.
    let sbin = || Some(PathBuf::from("/usr/sbin/nginx")).filter(|path| path.is_file());
    find_on_path("nginx")
        .or_else(sbin)
        .context("nginx was not found: run `make deps` to install it")
}

fn log_path(directory: &TempDir) -> PathBuf {
    directory.path().join("nginx.log")
}

/// `false` when it ended, or did not listen in time.
fn wait_until_ready(process: &Process, port: u16) -> bool {
    let ends = Instant::now() + READY_WITHIN;
    while process.exit_status().is_none() && Instant::now() < ends {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return true;
        }
        std::thread::sleep(POLL);
    }
    false
}
