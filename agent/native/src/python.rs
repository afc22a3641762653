//! The module's surface: conversion of arguments and results, and errors.

use pyo3::prelude::*;

pyo3::create_exception!(kvtier_index, Refused, pyo3::exceptions::PyValueError);

/// The Python module.
#[pymodule]
fn kvtier_index(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Refused", module.py().get_type::<Refused>())
}
