//! A worker as a process of its own: it can be frozen and killed, and its logs, its metrics and the
//! processor time it takes are its own.

use std::net::{Ipv4Addr, SocketAddr};

use flashsale_test_support::{Program, free_port};

use crate::support::{AdminPort, Stand};

/// An order-worker process.
pub(crate) struct RealWorker {
    pub(crate) program: Program,
    pub(crate) admin: AdminPort,
}

impl Stand {
    /// Starts one on this deployment, with these variables on top of the deployment's settings. It is
    /// not waited for.
    pub(crate) fn real_worker(&self, more: &[(&str, String)]) -> RealWorker {
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let env: Vec<(&str, String)> =
            self.env.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        let program = Program::builder(env!("CARGO_BIN_EXE_order-worker"))
            .envs(&env)
            .env("FLASHSALE__ADMIN__LISTEN", admin.to_string())
            .envs(more)
            .start();
        RealWorker { program, admin: AdminPort(admin) }
    }
}

impl RealWorker {
    /// How many lines it has logged.
    pub(crate) fn lines(&self) -> usize {
        self.program.log().lines().count()
    }

    /// Processor time that it has taken since its start, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let path = format!("/proc/{}/stat", self.program.pid());
        let stat = std::fs::read_to_string(path).expect("it runs");
        // The name, in brackets, may hold anything; utime and stime are the 12th and 13th behind it.
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let ticks: u32 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|field| field.parse::<u32>().expect("a number"))
            .sum();
        // USER_HZ is 100 on every Linux.
        f64::from(ticks) / 100.0
    }
}
