//! The effects of causes on a route.

/// The effect of a cause, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The check fails.
    Fails,
    /// No bytes reach a GPU.
    Stops,
    /// The bytes pass through host memory.
    Stages,
    /// Some calls fail.
    Limits,
    /// The route is slower than it could be.
    Slows,
}

impl Effect {
    pub fn key(self) -> &'static str {
        match self {
            Effect::Fails => "fails",
            Effect::Stops => "stops",
            Effect::Stages => "stages",
            Effect::Limits => "limits",
            Effect::Slows => "slows",
        }
    }
}
