//! Tests of the workspace as a whole: its layering, and its programs together.

mod after_order;
mod alerts;
mod crash;
mod documents;
mod drain;
mod drills;
mod layering;
mod licences;
mod nginx;
mod nginx_tls;
mod nginx_under_load;
mod pay;
mod receiver;
mod rehearse;
mod sale;
mod settings;
mod stack;
mod traces;
