//! Tests of the workspace as a whole: its layering, and its programs together.

mod documents;
mod layering;
mod licences;
