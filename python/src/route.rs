use gpufile::RouteKind;
use pyo3::prelude::*;

use crate::error::not_pickled;

/// The route that a file's bytes take to GPU memory.
#[pyclass(frozen, module = "gpufile", eq)]
#[derive(PartialEq)]
pub struct Route {
    kind: RouteKind,
    why_not: Vec<(RouteKind, String)>,
}

impl Route {
    pub fn new(route: &gpufile::Route) -> Self {
        let why_not = route.why_not().map(|(kind, reason)| (kind, reason.to_owned())).collect();
        Self { kind: route.kind(), why_not }
    }
}

#[pymethods]
impl Route {
    /// The kind of route, best first: with ``"gds"`` and ``"p2pdma"`` the bytes bypass host memory, with ``"cufile-compat"``
    /// and ``"posix"`` they pass through it. ``"unavailable"`` means that only host memory can be used.
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind.as_str()
    }

    /// The better routes, as a dictionary from ``kind`` to the reason why it is not used.
    #[getter]
    fn why_not(&self) -> std::collections::BTreeMap<&'static str, &str> {
        self.why_not.iter().map(|(kind, reason)| (kind.as_str(), reason.as_str())).collect()
    }

    fn __str__(&self) -> String {
        let mut text = self.kind.to_string();
        for (kind, reason) in &self.why_not {
            text.push_str(&format!("\nnot {kind}: {reason}"));
        }
        text
    }

    fn __reduce_ex__(&self, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(not_pickled("gpufile.Route", "pass on its kind, or str(route)"))
    }

    fn __repr__(&self) -> String {
        format!("<gpufile.Route {:?}>", self.kind())
    }
}
