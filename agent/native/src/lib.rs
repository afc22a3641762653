//! The index of one pool. What each method means is said in `kvtier_index.pyi`.

#[cfg(feature = "python")]
mod python;
