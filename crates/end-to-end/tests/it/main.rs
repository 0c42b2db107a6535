//! Tests of the workspace as a whole: its layering, and its programs together.

mod crash;
mod documents;
mod drain;
mod layering;
mod licences;
mod sale;
mod settings;
mod stack;
