//! Tests of the workspace as a whole: its layering, and its programs together.

mod layering;
mod licences;
