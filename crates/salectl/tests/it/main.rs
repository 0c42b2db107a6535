//! The real program against real stores: what it prints, and its exit code.

mod after_the_order;
mod commands;
mod databases;
mod dead;
mod doctor;
mod drill;
mod rebuild;
mod remote;
mod settle;
mod stand;
