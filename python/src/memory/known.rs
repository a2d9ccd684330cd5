//! Findings that the buffers of a list share with the one before them: the allocation, and the protocol of their class.

use std::ops::Range;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::dlpack::{self, Dialect};
use super::export::Export;
use super::{Access, Claimed, Place, array_interface};

#[derive(Default)]
pub struct Known<'py> {
    pub(super) allocation: Option<Allocation>,
    kind: Option<Kind<'py>>,
}

/// The allocation that a buffer lies in. The next ones often lie there too, and CUDA takes some microseconds to find it.
pub(super) struct Allocation {
    pub place: Place,
    pub addresses: Range<usize>,
}

impl Allocation {
    pub fn has(&self, address: usize, len_bytes: usize) -> bool {
        let Range { start, end } = self.addresses;
        len_bytes > 0 && start <= address && address < end && len_bytes <= end - address
    }
}

pub(super) enum Offer {
    Export(Export),
    /// The memory, and what keeps it allocated.
    Claim(Claimed, Py<PyAny>),
}

/// The protocols by which objects offer memory, in the order of preference.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Buffer,
    Dlpack,
    ArrayInterface,
}

/// A class of objects. To ask an object for an attribute that it lacks takes longer than the rest, because Python makes an
/// exception.
struct Kind<'py> {
    class: Bound<'py, PyType>,
    objects: usize,
    dialect: Dialect,
    /// The protocol by which the last object of the class offered its memory.
    protocol: Option<Protocol>,
}

impl<'py> Known<'py> {
    /// Returns the memory that an object offers. `None` if it offers none.
    pub(super) fn offer(&mut self, object: &Bound<'py, PyAny>, access: Access) -> PyResult<Option<Offer>> {
        let class = object.get_type();
        let kind = match self.kind.take() {
            Some(kind) if kind.class.is(&class) => kind,
            _ => Kind { class, objects: 0, dialect: Dialect::default(), protocol: None },
        };
        self.kind.insert(kind).offer(object, access)
    }
}

impl Kind<'_> {
    fn offer(&mut self, object: &Bound<'_, PyAny>, access: Access) -> PyResult<Option<Offer>> {
        self.objects += 1;
        // To ask the class pays off from the second object on.
        if self.objects == 2 && self.protocol == Some(Protocol::Dlpack) {
            self.dialect.learn(&self.class);
        }
        if let Some(protocol) = self.protocol
            && let Ok(Some(offer)) = self.offer_by(protocol, object, access)
        {
            return Ok(Some(offer));
        }
        let mut refused = None;
        for protocol in [Protocol::Buffer, Protocol::Dlpack, Protocol::ArrayInterface] {
            match self.offer_by(protocol, object, access) {
                Ok(Some(offer)) => {
                    self.protocol = Some(protocol);
                    return Ok(Some(offer));
                }
                Ok(None) => {}
                // numpy exports neither dates nor the types of other libraries, such as bfloat16, as buffers.
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    fn offer_by(
        &mut self,
        protocol: Protocol,
        object: &Bound<'_, PyAny>,
        access: Access,
    ) -> PyResult<Option<Offer>> {
        let claim = |(claimed, owner)| Offer::Claim(claimed, owner);
        match protocol {
            // SAFETY: takes any object.
            Protocol::Buffer if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 => Ok(None),
            Protocol::Buffer => Export::of(object).map(Offer::Export).map(Some),
            Protocol::Dlpack => Ok(dlpack::claimed(object, access, &mut self.dialect)?.map(claim)),
            Protocol::ArrayInterface => {
                let claimed = array_interface::claimed(object, access)?;
                Ok(claimed.map(|claimed| claim((claimed, object.clone().unbind()))))
            }
        }
    }
}
