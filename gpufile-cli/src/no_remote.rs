//! The options for objects of servers in a program that takes no URLs: there are none.

use super::failure::Failure;
use super::location::Location;

/// No options.
#[derive(clap::Args, Default)]
pub struct RequestArgs {}

/// No options.
#[derive(clap::Args, Default)]
pub struct RemoteArgs {}

impl RequestArgs {
    pub fn check_unused(&self) -> Result<(), Failure> {
        Ok(())
    }
}

impl RemoteArgs {
    pub fn check(&self, _: &Location) -> Result<(), Failure> {
        Ok(())
    }
}
