//! The options for objects of servers in a program that takes no URLs: there is only the one for paths too.

use std::time::Duration;

use super::failure::Failure;
use super::location::Location;
use super::units::duration;

/// The option that is also for paths.
#[derive(clap::Args, Default)]
pub struct RequestArgs {
    /// Ends the check of a path after so long, such as 10, 500ms, 2m [default: 10].
    #[arg(long = "timeout", value_name = "TIME", value_parser = duration)]
    path_timeout: Option<Duration>,
}

/// No options.
#[derive(clap::Args, Default)]
pub struct RemoteArgs {}

impl RequestArgs {
    pub fn check_unused(&self) -> Result<(), Failure> {
        match self.path_timeout {
            None => Ok(()),
            Some(_) => Err(Failure::Usage("--timeout is for `gpufile check`".to_owned())),
        }
    }

    pub fn path_timeout(&self) -> Result<Option<Duration>, Failure> {
        Ok(self.path_timeout)
    }
}

impl RemoteArgs {
    pub fn check(&self, _: &Location) -> Result<(), Failure> {
        Ok(())
    }
}
