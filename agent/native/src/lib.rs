//! The index of one pool. What each method means to its caller is said in `kvtier_index.pyi`.
//!
//! `python` is the surface: conversion and errors. `index` has the state and what every change goes through; `find`,
//! `holds`, `puts`, `nvme`, `chunks` and `recovery` are its methods by purpose; the rest are the parts that it is made of.

// Built without its surface, only the tests call it.
#![cfg_attr(not(feature = "python"), allow(dead_code))]

mod chunks;
mod column;
mod error;
mod find;
mod holds;
mod index;
mod keys;
mod nvme;
mod pages;
mod policy;
mod puts;
#[cfg(feature = "python")]
mod python;
mod recovery;
mod segments;
mod slots;
mod table;
#[cfg(test)]
mod testing;
mod tree;
