//! Servers to compare with: the limit, and designs that others have chosen. Bench-only; each listens at
//! the gateway's route, so that the same load generator presses all of them.

pub(crate) mod echo;
pub(crate) mod memory_queue;
pub(crate) mod pool;
pub(crate) mod row_by_row;
pub(crate) mod script;
mod token;

use std::net::SocketAddr;

use clap::ValueEnum;

/// Which server.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Server {
    Echo,
    Pool,
    MemoryQueue,
}

/// Serves until it is ended. Settings come from the environment, as for every program.
pub(crate) fn serve(server: Server, listen: SocketAddr, workers: usize) -> anyhow::Result<()> {
    actix_web::rt::System::new().block_on(async {
        match server {
            Server::Echo => echo::serve(listen, workers).await,
            Server::Pool => pool::serve(listen, workers).await,
            Server::MemoryQueue => memory_queue::serve(listen, workers).await,
        }
    })
}
