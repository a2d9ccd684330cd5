//! Spans of requests, and events of ways that were not taken, for subscribers of the crate tracing. Without the feature
//! `tracing`, nothing is left of them.

use crate::direction::Direction;

/// A request as a span, from now until this is dropped.
#[must_use]
pub(crate) struct Request {
    #[cfg(feature = "tracing")]
    _span: tracing::Span,
}

/// The fields of a span.
#[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "nobody reads them"))]
pub(crate) struct Facts {
    pub direction: Direction,
    pub bytes: u64,
    /// The number of ranges.
    pub ranges: usize,
    pub route: &'static str,
}

impl Request {
    /// The route of host memory.
    pub const HOST: &str = "host";

    /// Begins a span. Asks for the facts only if a subscriber wants them.
    #[cfg(feature = "tracing")]
    pub fn begin(facts: impl FnOnce() -> Facts) -> Self {
        use tracing::{Level, Span, debug_span, enabled};

        if !enabled!(target: "gpufile", Level::DEBUG) {
            return Self { _span: Span::none() };
        }
        let Facts { direction, bytes, ranges, route } = facts();
        let _span = match direction {
            Direction::Read => debug_span!(target: "gpufile", "read", bytes, ranges, route),
            Direction::Write => debug_span!(target: "gpufile", "write", bytes, ranges, route),
        };
        Self { _span }
    }

    #[cfg(not(feature = "tracing"))]
    #[inline]
    pub fn begin(_: impl FnOnce() -> Facts) -> Self {
        Self {}
    }
}

/// Tells a reason against a better way.
#[cfg(feature = "tracing")]
pub(crate) fn not_taken(reason: &str) {
    tracing::info!(target: "gpufile", reason, "a better way was not taken");
}

#[cfg(not(feature = "tracing"))]
#[inline]
pub(crate) fn not_taken(_: &str) {}
